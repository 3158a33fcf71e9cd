"""Fuzz cases of the proposals of `raymine.toolkit`: spacing along rays, CDFs, the interlevel loss and training."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.toolkit import proposal
from raymine.toolkit.pack import Pack
from support.fuzz import USUAL, Args, Case, Size
from support.fuzz_arguments import rand
from support.fuzz_expect import Array, alike, careful, equals, moderate, plain, require
from support.fuzz_importance import EDGES, VALUES, edges_args, neighbours, packed_edges_args, rays_of

TOOLS = "raymine.toolkit"

# ---- samples of a ray


def span_args(rng: torch.Generator, size: Size) -> Args:
    return {
        "near": rand(rng, size.rays, low=0.1, high=0.5),
        "far": rand(rng, size.rays, low=2.0, high=5.0),
        "s": rand(rng, size.rays, VALUES),
    }


def spread(spacing: str) -> Any:
    def expected(near: Array, far: Array, s: Array) -> Array:
        require(s.ndim == 2 and near.shape == far.shape == (len(s),), "shapes")
        require(s.dtype == np.float64 and near.dtype.kind in "fi" and far.dtype.kind in "fi", "types")
        out = np.zeros(s.shape)
        for r, (low, high) in enumerate(zip(near, far, strict=True)):
            hit = low < high and np.isfinite(low) and np.isfinite(high) and (spacing == "uniform" or high > 0)
            if not hit:
                out[r] = low if np.isfinite(low) else 0.0
            elif spacing == "uniform":
                out[r] = (1 - s[r]) * low + s[r] * high
            else:
                out[r] = 1 / ((1 - s[r]) / max(low, 1e-6 * high) + s[r] / high)
        return out

    return expected


def run_distances(spacing: Any) -> Any:
    return lambda near, far, s: proposal.RaySpan(near, far, spacing=spacing).distances(s)


def normalised_args(rng: torch.Generator, size: Size) -> Args:
    return {
        "near": rand(rng, size.rays, low=0.1, high=0.5),
        "far": rand(rng, size.rays, low=2.0, high=5.0),
        "t": rand(rng, size.rays * VALUES, high=6.0),
        "ray": torch.arange(size.rays).repeat_interleave(VALUES),
    }


def unspread(spacing: str) -> Any:
    def expected(near: Array, far: Array, t: Array, ray: Array) -> Array:
        require(near.ndim == 1 and near.shape == far.shape and t.ndim == 1 and t.shape == ray.shape, "shapes")
        require(t.dtype == np.float64 and near.dtype.kind in "fi" and far.dtype.kind in "fi", "types")
        require(ray.dtype == np.int64 and ((ray >= 0) & (ray < len(near))).all(), "rays")
        out = np.zeros(t.shape)
        for i, (at, low, high) in enumerate(zip(t, near[ray], far[ray], strict=True)):
            if low < high and np.isfinite(low) and np.isfinite(high) and (spacing == "uniform" or high > 0):
                low = low if spacing == "uniform" else max(low, 1e-6 * high)
                at = np.nan if np.isnan(at) else min(max(at, low), high)
                out[i] = (
                    (at - low) / (high - low) if spacing == "uniform" else (1 / low - 1 / at) / (1 / low - 1 / high)
                )
        return out

    return expected


def run_normalised(spacing: Any) -> Any:
    return lambda near, far, t, ray: proposal.RaySpan(near, far, spacing=spacing).normalised(t, ray)


def levels_args(rng: torch.Generator, size: Size) -> Args:
    """The proposal returns `density`, so that wrong results of a callback are tried too."""
    return {
        "near": rand(rng, size.rays, low=0.1, high=0.5),
        "far": rand(rng, size.rays, low=2.0, high=5.0),
        "density": rand(rng, size.rays, EDGES, high=3),
        "stratified": rand(rng, 2, size.rays),
        "samples": EDGES,
        "final": VALUES,
        "exponent": 0.7,
    }


def run_sample(near: Tensor, far: Tensor, density: Tensor, samples: int, final: int, **options: Any) -> Any:
    span = proposal.RaySpan(near, far)
    return proposal.ProposalEstimator().sample([lambda *_: density], [samples], final, span, **options)


def run_propose(near: Tensor, far: Tensor, density: Tensor, samples: int, final: int, **options: Any) -> Any:
    span = proposal.RaySpan(near, far)
    t = span.distances(proposal.propose([(lambda *_: density, samples)], final, span, **options).edges)
    return proposal.Intervals(t[:, :-1], t[:, 1:])


@careful
def in_span(args: Args, result: proposal.Intervals) -> str:
    """Intervals follow one another from at least `near` to at most `far`."""
    require(args["density"].shape == (len(args["near"]), args["samples"]), "density")
    if result.t_starts.shape != (len(args["near"]), args["final"]) or result.t_ends.shape != result.t_starts.shape:
        return f"shape {list(result.t_starts.shape)}"
    start, end = plain(result.t_starts), plain(result.t_ends)
    low, high = (plain(args[name])[:, None] for name in ("near", "far"))
    proper = (low > 0) & (low < high) & (high < 1e6)
    if not (moderate(args) and ((args["stratified"] >= 0) & (args["stratified"] <= 1)).all()):
        return ""
    room = 0.05 if torch.float16 in (result.t_starts.dtype, args["density"].dtype) else 1e-3
    sound = (start <= end + room) & (start >= low * (1 - room)) & (end <= high * (1 + room))
    joined = np.abs(start[:, 1:] - end[:, :-1]) <= room
    return "" if (sound | ~proper).all() and (joined | ~proper).all() else "intervals leave near .. far, or have gaps"


# ---- interlevel loss


def bound_loss(edges: Array, cdfs: Array, proposal_edges: Array, proposal_cdfs: Array, eps: float = 1e-7) -> Array:
    """The interlevel loss of one ray, interval by interval."""
    found = np.zeros(max(len(edges) - 1, 0))
    for i in range(len(found)):
        weight = cdfs[i + 1] - cdfs[i]
        bound = 0.0
        if len(proposal_edges):
            left, _ = neighbours(proposal_edges, edges[i : i + 1])
            _, right = neighbours(proposal_edges, edges[i + 1 : i + 2])
            bound = proposal_cdfs[right[0]] - proposal_cdfs[left[0]]
        found[i] = max(0.0, weight - bound) ** 2 / (weight + eps)
    return found


def interlevel_args(rng: torch.Generator, size: Size) -> Args:
    other = edges_args(rng, Size(size.rays, 0))
    return {**edges_args(rng, size), "proposal_edges": other["edges"], "proposal_cdfs": other["cdfs"], "eps": 1e-5}


def interlevel(edges: Array, cdfs: Array, proposal_edges: Array, proposal_cdfs: Array, eps: float) -> Array:
    alike(edges, cdfs)
    alike(proposal_edges, proposal_cdfs)
    require(edges.ndim >= 1 and edges.shape[:-1] == proposal_edges.shape[:-1] and edges.shape[-1] > 0, "shapes")
    require((np.diff(proposal_edges) >= 0).all(), "must ascend")
    rows = [part.reshape(-1, part.shape[-1]) for part in (edges, cdfs, proposal_edges, proposal_cdfs)]
    each = [bound_loss(*row, eps) for row in zip(*rows, strict=True)]
    return np.array(each).reshape(*edges.shape[:-1], edges.shape[-1] - 1)


def interlevel_packed_args(rng: torch.Generator, size: Size) -> Args:
    other = packed_edges_args(rng, size)
    renamed = {f"proposal_{name}": value for name, value in other.items()}
    return {**packed_edges_args(rng, size), **renamed}


def run_interlevel_packed(
    first: Tensor, count: Tensor, proposal_first: Tensor, proposal_count: Tensor, **args: Tensor
) -> Tensor:
    return proposal.interlevel_loss(**args, packs=(Pack(first, count), Pack(proposal_first, proposal_count)))


def interlevel_packed(**args: Array) -> Array:
    alike(args["edges"], args["cdfs"])
    alike(args["proposal_edges"], args["proposal_cdfs"])
    rays = rays_of(args["first"], args["count"], args["edges"])
    others = rays_of(args["proposal_first"], args["proposal_count"], args["proposal_edges"])
    each = []
    for own, other in zip(rays, others, strict=True):
        require((np.diff(args["proposal_edges"][other]) >= 0).all(), "must ascend")
        each.append(
            bound_loss(
                args["edges"][own], args["cdfs"][own], args["proposal_edges"][other], args["proposal_cdfs"][other]
            )
        )
    return np.concatenate([np.zeros(0), *each])


def blurred_loss(
    edges: Array, cdfs: Array, proposal_edges: Array, proposal_cdfs: Array, blur: float, eps: float
) -> Array:
    """The blurred loss of one ray: the blurred CDF is the mean of the CDF at many places within the width."""
    offsets = blur * (2 * (np.arange(4000) + 0.5) / 4000 - 1)
    blurred = np.zeros(len(proposal_edges))
    if len(edges):
        places = proposal_edges[:, None] + offsets
        blurred = np.interp(places, edges, cdfs - cdfs[0]).mean(1)
    weights = np.diff(proposal_cdfs)
    return np.maximum(np.diff(blurred) - weights, 0.0) ** 2 / (weights + eps)


BLUR_EPS = 0.5
"""Large, so that rounding is not divided by a weight of 0."""


def blurred(edges: Array, cdfs: Array, proposal_edges: Array, proposal_cdfs: Array, blur: float, eps: float) -> Array:
    alike(edges, cdfs)
    alike(proposal_edges, proposal_cdfs)
    require(edges.ndim >= 1 and edges.shape[:-1] == proposal_edges.shape[:-1] and edges.shape[-1] > 0, "shapes")
    require(0 < blur < np.inf, "blur")
    require((np.diff(edges) >= 0).all(), "must ascend")
    rows = [part.reshape(-1, part.shape[-1]) for part in (edges, cdfs, proposal_edges, proposal_cdfs)]
    each = [blurred_loss(*row, blur, eps) for row in zip(*rows, strict=True)]
    return np.array(each).reshape(*proposal_edges.shape[:-1], proposal_edges.shape[-1] - 1)


def run_blurred_packed(
    first: Tensor, count: Tensor, proposal_first: Tensor, proposal_count: Tensor, **args: Any
) -> Tensor:
    packs = Pack(first, count), Pack(proposal_first, proposal_count)
    return proposal.blurred_interlevel_loss(**args, packs=packs, eps=BLUR_EPS)


def blurred_packed(blur: float, **args: Array) -> Array:
    alike(args["edges"], args["cdfs"])
    alike(args["proposal_edges"], args["proposal_cdfs"])
    require(0 < blur < np.inf, "blur")
    rays = rays_of(args["first"], args["count"], args["edges"])
    others = rays_of(args["proposal_first"], args["proposal_count"], args["proposal_edges"])
    each = []
    for own, other in zip(rays, others, strict=True):
        require((np.diff(args["edges"][own]) >= 0).all(), "must ascend")
        rows = args["edges"][own], args["cdfs"][own], args["proposal_edges"][other], args["proposal_cdfs"][other]
        each.append(blurred_loss(*rows, blur, BLUR_EPS) if len(rows[2]) else np.zeros(0))
    return np.concatenate([np.zeros(0), *each])


def unless_unsorted(expected: Any) -> Any:
    """As `equals`; if edges do not ascend, only the shape is promised."""
    plainly = equals(expected, close=1e-3)

    def holds(args: Args, result: Tensor) -> str:
        bad = plainly(args, result)
        return "" if "must ascend" in bad else bad

    return holds


# ---- training


def pending(near: Tensor, far: Tensor, density: Tensor) -> tuple[proposal.ProposalEstimator, Tensor]:
    """An estimator after `sample` with a proposal whose densities are parameters."""
    weight = torch.nn.Parameter(density.clone())
    estimator = proposal.ProposalEstimator(torch.optim.SGD([weight], lr=0.1))
    span = proposal.RaySpan(near, far)
    estimator.sample([lambda *_: weight], [EDGES], VALUES, span, requires_grad=True)
    return estimator, weight


def loss_args(rng: torch.Generator, size: Size) -> Args:
    return {"transmittance": rand(rng, size.rays, VALUES).cumprod(-1), "loss_scaler": 2.0}


def a_proposal(rays: int) -> Any:
    rng = torch.Generator().manual_seed(3)
    return pending(torch.full((rays,), 0.2), torch.full((rays,), 3.0), rand(rng, rays, EDGES, high=3))


def run_loss(transmittance: Tensor, loss_scaler: float) -> Any:
    estimator, _ = a_proposal(USUAL.rays)
    (level,), edges = estimator.pending
    return estimator.compute_loss(transmittance, loss_scaler), level.edges, level.cdfs.detach(), edges


@careful
def loss_of_levels(args: Args, result: Any) -> str:
    loss, proposal_edges, proposal_cdfs, edges = result
    transmittance = plain(args["transmittance"])
    require(transmittance.dtype == np.float64, "types")
    cdfs = 1 - np.concatenate((transmittance, np.zeros((len(transmittance), 1))), -1)
    wanted = interlevel(plain(edges), cdfs, plain(proposal_edges), plain(proposal_cdfs), 1e-7).mean()
    same = equals(lambda **_: wanted * args["loss_scaler"], close=1e-3)
    return same(args, loss) if loss.shape == () else f"shape {list(loss.shape)}"


def run_update(transmittance: Tensor, loss_scaler: float) -> Any:
    estimator, weight = a_proposal(USUAL.rays)
    before = weight.detach().clone()
    loss = estimator.update_every_n_steps(transmittance, True, loss_scaler)
    return loss, float((weight.detach() - before).abs().max())


@careful
def trained(args: Args, result: Any) -> str:
    """Parameters stay finite, and change only if the loss is finite."""
    loss, change = result
    require(args["transmittance"].shape == (USUAL.rays, VALUES), "transmittance")
    if not np.isfinite(loss):
        return "" if change == 0 else "parameters changed although the loss is not finite"
    return "" if np.isfinite(change) else "parameters became NaN or infinite"


def gated(target: float, num_steps: int, step: int) -> list[bool]:
    since, found = 0, []
    for _ in range(8):
        due = since > min(step / num_steps, 1.0) * target
        since = 1 if due else since + 1
        found.append(due)
    return found


# ---- CDFs


def density_args(rng: torch.Generator, size: Size) -> Args:
    edges = rand(rng, size.rays, VALUES + 1, low=0.1).cumsum(-1)
    return {
        "densities": rand(rng, size.rays, VALUES, high=3),
        "t_starts": edges[:, :-1].clone(),
        "t_ends": edges[:, 1:].clone(),
    }


def cdf_of(densities: Array, t_starts: Array, t_ends: Array) -> Array:
    alike(densities, t_starts, t_ends)
    require(densities.ndim >= 1 and densities.shape[-1] >= 1, "shapes")
    length = t_ends - t_starts
    optical = np.where(length == 0, 0.0, densities * length)[..., :-1].cumsum(-1)
    ends = np.zeros_like(densities[..., :1])
    return np.concatenate((ends, 1 - np.exp(-optical), ends + 1), -1)


def raised(cdfs: Array, exponent: float) -> Array:
    require(cdfs.ndim >= 1 and cdfs.dtype == np.float64, "cdfs")
    weights = np.maximum(np.diff(cdfs), 0.0)
    if exponent == 1 or cdfs.shape[-1] < 2 or not cdfs.size:
        return cdfs
    largest = weights.max(-1, keepdims=True)
    powers = (weights / largest) ** exponent
    total = powers.cumsum(-1)
    found = np.concatenate((np.zeros_like(total[..., :1]), total / total[..., -1:]), -1)
    return np.where(largest > 0, found, cdfs)


CASES = [
    *(
        Case(
            (f"{TOOLS}.spans.RaySpan", f"{TOOLS}.spans.RaySpan.distances"),
            span_args,
            run_distances(spacing),
            holds=equals(spread(spacing)),
            label=spacing,
        )
        for spacing in ("uniform", "lindisp")
    ),
    Case(
        (f"{TOOLS}.spans.RaySpan",),
        lambda rng, size: {"near": 0.5, "far": 2.5, "n_rays": size.rays, "s": rand(rng, size.rays, VALUES)},
        lambda s, **span: proposal.RaySpan(**span).distances(s),
        holds=equals(lambda near, far, n_rays, s: spread("lindisp")(np.full(n_rays, near), np.full(n_rays, far), s)),
        label="numbers",
        sizes=(USUAL,),
    ),
    *(
        Case(
            (f"{TOOLS}.spans.RaySpan.normalised",),
            normalised_args,
            run_normalised(spacing),
            ("t",),
            holds=equals(unspread(spacing), close=1e-3),
            label=spacing,
        )
        for spacing in ("uniform", "lindisp")
    ),
    Case((f"{TOOLS}.proposal.propose",), levels_args, run_propose, holds=in_span),
    Case(
        (
            f"{TOOLS}.proposal.ProposalEstimator",
            f"{TOOLS}.proposal.ProposalEstimator.sample",
            f"{TOOLS}.proposal.check_densities",
        ),
        levels_args,
        run_sample,
        holds=in_span,
    ),
    Case(
        (f"{TOOLS}.proposal.ProposalEstimator.compute_loss",),
        loss_args,
        run_loss,
        holds=loss_of_levels,
        sizes=(USUAL,),
    ),
    Case(
        (f"{TOOLS}.proposal.ProposalEstimator.update_every_n_steps", f"{TOOLS}.proposal.update_if_finite"),
        loss_args,
        run_update,
        holds=trained,
        sizes=(USUAL,),
    ),
    Case((f"{TOOLS}.proposal.density_cdf",), density_args, proposal.density_cdf, holds=equals(cdf_of)),
    Case(
        (f"{TOOLS}.proposal.transmittance_cdf",),
        lambda rng, size: {"transmittance": rand(rng, size.rays, VALUES)},
        proposal.transmittance_cdf,
        holds=equals(lambda transmittance: 1 - np.concatenate((transmittance, 0 * transmittance[..., :1]), -1)),
    ),
    Case(
        (f"{TOOLS}.proposal.sharpened",),
        lambda rng, size: {"cdfs": edges_args(rng, size)["cdfs"], "exponent": 0.7},
        proposal.sharpened,
        holds=equals(raised),
    ),
    Case(
        (f"{TOOLS}.proposal.anneal_exponent",),
        lambda *_: {"step": 30, "steps": 100, "slope": 10.0},
        proposal.anneal_exponent,
        holds=equals(
            lambda step, steps, slope: (lambda x: slope * x / ((slope - 1) * x + 1))(min(max(step / steps, 0.0), 1.0))
        ),
        sizes=(USUAL,),
    ),
    Case(
        (f"{TOOLS}.proposal.interlevel_loss",),
        interlevel_args,
        proposal.interlevel_loss,
        ("cdfs", "proposal_cdfs"),
        holds=unless_unsorted(interlevel),
        label="batched",
    ),
    Case(
        (f"{TOOLS}.proposal.interlevel_loss",),
        interlevel_packed_args,
        run_interlevel_packed,
        holds=unless_unsorted(interlevel_packed),
        label="packed",
    ),
    Case(
        (f"{TOOLS}.proposal.blurred_interlevel_loss",),
        lambda rng, size: {**interlevel_args(rng, size), "blur": 0.1, "eps": BLUR_EPS},
        proposal.blurred_interlevel_loss,
        ("cdfs", "proposal_cdfs"),
        holds=unless_unsorted(blurred),
        label="batched",
    ),
    Case(
        (f"{TOOLS}.proposal.blurred_interlevel_loss",),
        lambda rng, size: {**interlevel_packed_args(rng, size), "blur": 0.1},
        run_blurred_packed,
        holds=unless_unsorted(blurred_packed),
        label="packed",
    ),
    Case(
        (f"{TOOLS}.proposal.ProposalGate", f"{TOOLS}.proposal.get_proposal_requires_grad_fn"),
        lambda *_: {"target": 3.0, "num_steps": 10, "step": 4},
        lambda target, num_steps, step: [
            (gate := proposal.get_proposal_requires_grad_fn(target, num_steps))(step),
            *(gate(step) for _ in range(7)),
        ],
        holds=equals(gated),
        sizes=(USUAL,),
    ),
]

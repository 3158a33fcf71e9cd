"""Fuzz cases of the samplers of `raymine.toolkit`: importance sampling and proposals.

The cases of occupancy grids are in `fuzz_occupancy`; `CASES` has both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.toolkit import importance, proposal
from raymine.toolkit.pack import Pack
from support import fuzz_occupancy
from support.fuzz import USUAL, Args, Case, Size
from support.fuzz_expect import Array, alike, by_ray, careful, equals, moderate, plain, require
from support.fuzz_kernels import packed_rays, rand

TOOLS = "raymine.toolkit"
EDGES, VALUES = 6, 4


def edges_args(rng: torch.Generator, size: Size) -> Args:
    """Batched edges and CDFs [R, n + 1]."""
    cdfs = rand(rng, size.rays, EDGES, low=0.05).cumsum(-1)
    return {
        "edges": rand(rng, size.rays, EDGES, low=0.05).cumsum(-1),
        "cdfs": cdfs / cdfs[:, -1:] if size.rays else cdfs,
    }


def packed_edges_args(rng: torch.Generator, size: Size) -> Args:
    """Packed edges and CDFs [S], ascending over all rays."""
    rising = [rand(rng, size.samples, low=0.05).cumsum(0) for _ in range(2)]
    return {"edges": rising[0], "cdfs": rising[1], **packed_rays(rng, size)}


def queries(rng: torch.Generator, size: Size, name: str, high: float) -> Args:
    """Packed values of the same rays, two for each, with a pack of their own."""
    count = torch.full((size.rays,), 2)
    own = {f"{name}_first": count.cumsum(0) - count, f"{name}_count": count}
    return {name: rand(rng, 2 * size.rays, high=high), **own}


def rays_of(first: Array, count: Array, flat: Array) -> list[slice]:
    """The samples of each ray; an exception unless they follow one another and are all."""
    require(flat.ndim == 1, "packed rays are flat")
    by_ray(lambda column: column, first, count, flat.astype(np.float64))
    return [slice(f, f + c) if c else slice(0, 0) for f, c in zip(first, count, strict=True)]


# ---- searching and resampling


def neighbours(row: Array, values: Array) -> tuple[Array, Array]:
    """Indices into one sorted row."""
    left, right = (np.full(values.shape, -1, dtype=np.int64) for _ in range(2))
    if not len(row):
        return left, right
    for i, value in enumerate(values):
        above = [k for k in range(len(row)) if row[k] > value]
        right[i] = above[0] if above else len(row) - 1
        left[i] = max(right[i] - 1, 0)
    return left, right


def searched(sorted: Array, values: Array) -> tuple[Array, Array]:
    require(sorted.ndim >= 1 and sorted.shape[:-1] == values.shape[:-1] and values.ndim == sorted.ndim, "shapes")
    require(sorted.dtype.kind in "fi" and values.dtype.kind in "fi", "types")
    require(sorted.ndim == 1 or (np.diff(sorted) >= 0).all(), "must ascend")
    rows, asked = sorted.reshape(-1, sorted.shape[-1]), values.reshape(-1, values.shape[-1])
    found = [neighbours(row, ask) for row, ask in zip(rows, asked, strict=True)]
    return tuple(np.array([each[k] for each in found], dtype=np.int64).reshape(values.shape) for k in (0, 1))


def searched_packed(
    sorted: Array, first: Array, count: Array, values: Array, values_first: Array, values_count: Array
) -> tuple[Array, Array]:
    require(len(first) == len(values_first), "rays")
    require(sorted.dtype.kind in "fi" and values.dtype.kind in "fi", "types")
    left, right = (np.full(values.shape, -1, dtype=np.int64) for _ in range(2))
    asked = rays_of(values_first, values_count, values)
    for rows, ask in zip(rays_of(first, count, sorted), asked, strict=True):
        require((np.diff(sorted[rows]) >= 0).all(), "must ascend")
        for out, found in zip((left, right), neighbours(sorted[rows], values[ask]), strict=True):
            out[ask] = np.where(found < 0, -1, found + rows.start)
    return left, right


def if_ascending(expected: Any) -> Any:
    """The property of a search. If the row does not ascend, indices exist all the same."""
    plainly = equals(expected)

    def holds(args: Args, result: Any) -> str:
        bad = plainly(args, result)
        if "must ascend" not in bad and moderate(args):
            return bad
        most = args["sorted"].shape[-1] if args["sorted"].ndim else 1
        exist = all(bool(((part >= -1) & (part < max(most, 1))).all()) for part in result)
        shaped = all(part.shape == args["values"].shape for part in result)
        return "" if exist and shaped else "an index does not exist"

    return holds


def rises(edges: Array, cdfs: Array) -> bool:
    return bool((np.diff(edges) >= 0).all() and (np.diff(cdfs) >= 0).all())


def right_places(edges: Array, cdfs: Array, u: Array, found: Array, coarse: float) -> str:
    """What is wrong with the distances of one ray at which its CDF takes the values u."""
    if not len(edges):
        return "" if not found.any() else "a ray without edges must give 0"
    room = coarse * max(1.0, np.abs(edges).max())
    if (found < edges.min() - room).any() or (found > edges.max() + room).any():
        return "a distance lies outside of its ray"
    if not rises(edges, cdfs) or (np.diff(cdfs) < 1e-6).any() or (np.diff(edges) < 1e-6).any():
        return ""
    wanted = np.interp(u, cdfs, edges)
    return "" if (np.abs(found - wanted) <= room).all() else "a distance lies where the CDF has another value"


def _coarse(args: Args) -> float:
    halves = any(isinstance(value, Tensor) and value.dtype == torch.float16 for value in args.values())
    return 5e-2 if halves else 1e-3


@careful
def inverted(args: Args, result: Tensor) -> str:
    edges, cdfs, u, found = (plain(part) for part in (args["edges"], args["cdfs"], args["u"], result))
    alike(edges, cdfs)
    require(u.dtype == np.float64, "types")
    require(edges.ndim and u.ndim == edges.ndim and u.shape[:-1] == edges.shape[:-1], "shapes")
    if found.shape != u.shape:
        return f"shape {list(found.shape)}"
    if not moderate(args):
        return ""
    rows = zip(*(part.reshape(-1, part.shape[-1]) for part in (edges, cdfs, u, found)), strict=True)
    return next((bad for row in rows if (bad := right_places(*row, _coarse(args)))), "") if u.size else ""


@careful
def inverted_packed(args: Args, result: Tensor) -> str:
    edges, cdfs, u, found = (plain(part) for part in (args["edges"], args["cdfs"], args["u"], result))
    alike(edges, cdfs)
    require(u.dtype == np.float64 and len(args["first"]) == len(args["u_first"]), "u")
    rays = rays_of(plain(args["first"]), plain(args["count"]), edges)
    asked = rays_of(plain(args["u_first"]), plain(args["u_count"]), u)
    if found.shape != u.shape:
        return f"shape {list(found.shape)}"
    if not moderate(args):
        return ""
    each = (right_places(edges[r], cdfs[r], u[a], found[a], _coarse(args)) for r, a in zip(rays, asked, strict=True))
    return next((bad for bad in each if bad), "")


def resampled_ray(edges: Array, cdfs: Array, new: Array, samples: Array, offset: float, coarse: float) -> str:
    """What is wrong with the new edges [m + 1] and samples [m] of one ray."""
    if len(new) != (len(samples) + 1 if len(samples) else 0):
        return "a ray with m samples must have m + 1 edges"
    if not len(samples) or not len(edges):
        return "" if not samples.any() and not new.any() else "a ray without edges must give 0"
    room = coarse * max(1.0, np.abs(edges).max())
    if (np.diff(edges) < 0).any() or (np.diff(cdfs) < 0).any():
        return ""
    if (np.diff(samples) < -room).any() or (np.diff(new) < -room).any():
        return "new intervals do not ascend"
    flat = cdfs if cdfs[-1] > cdfs[0] else edges
    u = flat[0] + (np.arange(len(samples)) + offset) * (flat[-1] - flat[0]) / len(samples)
    inside = (new >= edges[0] - room).all() and (new <= edges[-1] + room).all()
    return right_places(edges, flat, u, samples, coarse) if inside else "a new edge lies outside of its ray"


@careful
def resampled(args: Args, result: importance.Resampled) -> str:
    edges, cdfs = plain(args["edges"]), plain(args["cdfs"])
    alike(edges, cdfs)
    offset = plain(args["stratified"])
    require(offset.shape == edges.shape[:-1] and offset.dtype == np.float64, "stratified")
    new, samples = plain(result.edges), plain(result.samples)
    if new.shape != (*edges.shape[:-1], args["n"] + 1) or samples.shape != (*edges.shape[:-1], args["n"]):
        return f"shapes {list(new.shape)} and {list(samples.shape)}"
    if not moderate(args) or not ((offset >= 0) & (offset <= 1)).all():
        return ""
    rows = [part.reshape(-1, part.shape[-1]) for part in (edges, cdfs, new, samples)]
    each = (resampled_ray(*row, o, _coarse(args)) for *row, o in zip(*rows, offset.reshape(-1), strict=True))
    return next((bad for bad in each if bad), "")


@careful
def resampled_packed(args: Args, result: importance.Resampled) -> str:
    edges, cdfs, n = plain(args["edges"]), plain(args["cdfs"]), plain(args["n"])
    alike(edges, cdfs)
    rays = rays_of(plain(args["first"]), plain(args["count"]), edges)
    require(n.shape == (len(rays),) and n.dtype == np.int64 and (n >= 0).all(), "n")
    if result.edge_pack is None or result.sample_pack is None:
        return "packs are missing"
    new, samples = plain(result.edges), plain(result.samples)
    new_rays = rays_of(plain(result.edge_pack.first), plain(result.edge_pack.count), new)
    sample_rays = rays_of(plain(result.sample_pack.first), plain(result.sample_pack.count), samples)
    if [r.stop - r.start for r in sample_rays] != [
        int(k) if r.stop > r.start else 0 for k, r in zip(n, rays, strict=True)
    ]:
        return "a ray has another number of samples"
    if not moderate(args):
        return ""
    each = (
        resampled_ray(edges[r], cdfs[r], new[e], samples[s], 0.5, _coarse(args))
        for r, e, s in zip(rays, new_rays, sample_rays, strict=True)
    )
    return next((bad for bad in each if bad), "")


def half_way(samples: Array, low: Array, high: Array) -> Array:
    require(samples.ndim and low.shape == high.shape == samples.shape[:-1], "shapes")
    require(all(part.dtype == np.float64 for part in (samples, low, high)), "types")
    if samples.shape[-1] < 2:
        return np.stack((low, high), -1) if samples.shape[-1] else np.zeros((*low.shape, 0))
    inner = (samples[..., 1:] + samples[..., :-1]) / 2
    first = np.maximum(2 * samples[..., 0] - inner[..., 0], low)
    last = np.minimum(2 * samples[..., -1] - inner[..., -1], high)
    return np.concatenate((first[..., None], inner, last[..., None]), -1)


# ---- proposals


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


def unless_unsorted(expected: Any) -> Any:
    """As `equals`; if edges do not ascend, only the shape is promised."""
    plainly = equals(expected, close=1e-3)

    def holds(args: Args, result: Tensor) -> str:
        bad = plainly(args, result)
        return "" if "must ascend" in bad else bad

    return holds


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


def gated(target: float, num_steps: int, step: int) -> list[bool]:
    since, found = 0, []
    for _ in range(8):
        due = since > min(step / num_steps, 1.0) * target
        since = 1 if due else since + 1
        found.append(due)
    return found


CASES = [
    Case(
        (f"{TOOLS}.importance.searchsorted",),
        lambda rng, size: {"sorted": edges_args(rng, size)["edges"], "values": rand(rng, size.rays, VALUES, high=4)},
        importance.searchsorted,
        holds=if_ascending(searched),
        label="batched",
    ),
    Case(
        (f"{TOOLS}.importance.searchsorted",),
        lambda rng, size: {
            "sorted": (args := packed_edges_args(rng, size))["edges"],
            "first": args["first"],
            "count": args["count"],
            **queries(rng, size, "values", 12.0),
        },
        lambda sorted, values, first, count, values_first, values_count: importance.searchsorted(
            sorted, values, (Pack(first, count), Pack(values_first, values_count))
        ),
        holds=if_ascending(searched_packed),
        label="packed",
    ),
    Case(
        (f"{TOOLS}.importance.inverse_cdf",),
        lambda rng, size: {**edges_args(rng, size), "u": rand(rng, size.rays, VALUES)},
        importance.inverse_cdf,
        holds=inverted,
        label="batched",
    ),
    Case(
        (f"{TOOLS}.importance.inverse_cdf",),
        lambda rng, size: {**packed_edges_args(rng, size), **queries(rng, size, "u", 12.0)},
        lambda edges, cdfs, u, first, count, u_first, u_count: importance.inverse_cdf(
            edges, cdfs, u, (Pack(first, count), Pack(u_first, u_count))
        ),
        holds=inverted_packed,
        label="packed",
    ),
    Case(
        (f"{TOOLS}.importance.importance_samples",),
        lambda rng, size: {**edges_args(rng, size), "n": VALUES, "stratified": rand(rng, size.rays)},
        importance.importance_samples,
        holds=resampled,
        label="batched",
    ),
    Case(
        (f"{TOOLS}.importance.importance_samples",),
        lambda rng, size: {**packed_edges_args(rng, size), "n": torch.arange(size.rays) % 3},
        lambda first, count, **args: importance.importance_samples(**args, pack=Pack(first, count)),
        holds=resampled_packed,
        label="packed",
    ),
    Case(
        (f"{TOOLS}.importance.edges_between",),
        lambda rng, size: {
            "samples": rand(rng, size.rays, VALUES).cumsum(-1),
            "low": torch.zeros(size.rays),
            "high": torch.full((size.rays,), 5.0),
        },
        importance.edges_between,
        holds=equals(half_way),
    ),
    *(
        Case(
            (f"{TOOLS}.proposal.RaySpan", f"{TOOLS}.proposal.RaySpan.distances"),
            span_args,
            run_distances(spacing),
            holds=equals(spread(spacing)),
            label=spacing,
        )
        for spacing in ("uniform", "lindisp")
    ),
    Case(
        (f"{TOOLS}.proposal.RaySpan",),
        lambda rng, size: {"near": 0.5, "far": 2.5, "n_rays": size.rays, "s": rand(rng, size.rays, VALUES)},
        lambda s, **span: proposal.RaySpan(**span).distances(s),
        holds=equals(lambda near, far, n_rays, s: spread("lindisp")(np.full(n_rays, near), np.full(n_rays, far), s)),
        label="numbers",
        sizes=(USUAL,),
    ),
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
        (f"{TOOLS}.proposal.ProposalEstimator.update_every_n_steps",),
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
        (f"{TOOLS}.proposal.ProposalGate", f"{TOOLS}.proposal.get_proposal_requires_grad_fn"),
        lambda *_: {"target": 3.0, "num_steps": 10, "step": 4},
        lambda target, num_steps, step: [
            (gate := proposal.get_proposal_requires_grad_fn(target, num_steps))(step),
            *(gate(step) for _ in range(7)),
        ],
        holds=equals(gated),
        sizes=(USUAL,),
    ),
    *fuzz_occupancy.CASES,
]

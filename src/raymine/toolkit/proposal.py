"""Sampling with proposal networks, coarse to fine (mip-NeRF 360), and the loss that trains these networks.

A normalised distance s in 0..1 parametrises each ray (`RaySpan`). On each level, a cheap density function of the user
is evaluated on the current intervals. The CDF of its weights determines the next intervals
(`raymine.toolkit.importance`):

    CDF at edge i = 1 - T_i,   T_i = exp(-sum of sigma_j d_j over j < i),   and 1 at the last edge

So the transmittance that is left at the end of the ray counts for the last interval; with `opaque_end=False` it counts
for none, and the CDF ends at 1 - T_n. `propose` does all rounds. `interlevel_loss` and `blurred_interlevel_loss`
compare the weights of the final intervals with the proposals, and penalise proposals whose weights are too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.kernels.threads import power
from raymine.toolkit.importance import importance_samples, searchsorted
from raymine.toolkit.pack import Pack, pack_counts
from raymine.toolkit.scan import running_sum
from raymine.toolkit.spans import NEAREST as NEAREST
from raymine.toolkit.spans import RaySpan as RaySpan

DensityFn = Callable[[Tensor, Tensor], Tensor]
"""t_starts, t_ends [R, n] -> densities [R, n] >= 0, after activation."""


class Intervals(NamedTuple):
    """t_starts, t_ends [R, n]: distances along each ray."""

    t_starts: Tensor
    t_ends: Tensor


class Level(NamedTuple):
    """One proposal: its edges [R, n + 1] in s, and its CDF [R, n + 1] at the edges, which has a graph."""

    edges: Tensor
    cdfs: Tensor


class Proposals(NamedTuple):
    """edges [R, n + 1]: the final edges in s, without a graph. levels: the proposal of each round."""

    edges: Tensor
    levels: list[Level]


@torch.no_grad()
def propose(
    rounds: Sequence[tuple[DensityFn, int]],
    final_samples: int,
    span: RaySpan,
    *,
    stratified: bool | Tensor = False,
    requires_grad: bool = False,
    exponent: float = 1.0,
    opaque_end: bool = True,
) -> Proposals:
    """Place intervals coarse to fine: each round evaluates a density function, the next is resampled from its weights.

    rounds: the density function of each round, and its number of intervals per ray. span: near or far must be a tensor.
    stratified: as in `importance_samples`; a tensor has shape [len(rounds) + 1, R].
    requires_grad: whether densities are computed with a graph; then the CDFs of the levels have it too.
    exponent: weights are raised to this power before resampling (see `anneal_exponent`).
    opaque_end: as in `density_cdf`.
    """
    near = span.near if isinstance(span.near, Tensor) else span.far
    if not isinstance(near, Tensor):
        raise ConfigError("near or far of the `span` must be a tensor, whose device is that of the result.")
    edges = cdfs = torch.linspace(0, 1, 2, device=near.device).expand(span.rays, 2)
    offsets = _offsets(stratified, len(rounds) + 1, span.rays)
    levels = []
    for (density_fn, n), offset in zip(rounds, offsets, strict=False):
        edges = importance_samples(edges, sharpened(cdfs, exponent), n, stratified=offset).edges
        t = span.distances(edges)
        with torch.set_grad_enabled(requires_grad):
            densities = density_fn(t[:, :-1], t[:, 1:])
            check_densities(densities, t[:, 1:])
            cdfs = density_cdf(densities, t[:, :-1], t[:, 1:], opaque_end=opaque_end)
        levels.append(Level(edges, cdfs))
    edges = importance_samples(edges, sharpened(cdfs, exponent), final_samples, stratified=offsets[-1]).edges
    return Proposals(edges, levels)


class ProposalEstimator(torch.nn.Module):
    """Places samples with proposal networks, and trains these networks.

    optimizer, scheduler: of the proposal networks; only `update_every_n_steps` needs them. The estimator has no
    parameters. `.to(device)` sets the device of samples if near and far are plain numbers.

    `pending` holds the proposal levels and the final edges between `sample` and `compute_loss`.
    """

    _place: Tensor

    def __init__(self, optimizer: torch.optim.Optimizer | None = None, scheduler: Any = None) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.pending: tuple[list[Level], Tensor] | None = None
        self.register_buffer("_place", torch.empty(0), persistent=False)

    @torch.no_grad()
    def sample(
        self,
        density_fns: Sequence[DensityFn],
        proposal_samples: Sequence[int],
        final_samples: int,
        span: RaySpan,
        *,
        stratified: bool | Tensor = False,
        requires_grad: bool = False,
        exponent: float = 1.0,
    ) -> Intervals:
        """Final intervals [R, final_samples], after one round of resampling for each density function.

        density_fns, proposal_samples: the density function of each round, and its number of intervals per ray.
        stratified: as in `importance_samples`; a tensor has shape [len(density_fns) + 1, R].
        requires_grad: whether densities are computed with a graph and kept for `compute_loss`. The intervals never have
            a graph.
        exponent: weights are raised to this power before resampling (see `anneal_exponent`).
        """
        if len(density_fns) != len(proposal_samples):
            raise ConfigError(
                f"`proposal_samples` must have one number per density, {len(density_fns)}, got {len(proposal_samples)}."
            )
        if not (isinstance(span.near, Tensor) or isinstance(span.far, Tensor)):
            span = replace(span, near=torch.full((span.rays,), span.near, device=self._place.device))
        rounds = list(zip(density_fns, proposal_samples, strict=True))
        edges, levels = propose(
            rounds, final_samples, span, stratified=stratified, requires_grad=requires_grad, exponent=exponent
        )
        if requires_grad:
            self.pending = levels, edges
        t = span.distances(edges)
        return Intervals(t[:, :-1], t[:, 1:])

    @torch.enable_grad()
    def compute_loss(self, transmittance: Tensor, loss_scaler: float = 1.0) -> Tensor:
        """[]: loss_scaler * sum over levels of the mean interlevel loss. Differentiable in the proposal densities.

        transmittance: [R, final_samples], before each final interval; it gets no gradient. Uses and clears what the
        latest `sample` with requires_grad=True has kept. Returns 0 if there is nothing.
        """
        if self.pending is None:
            return transmittance.new_zeros(())
        levels, edges = self.pending
        if tuple(transmittance.shape) != (edges.shape[0], edges.shape[1] - 1):
            raise ConfigError(
                f"`transmittance` must have the shape of the final intervals, {[edges.shape[0], edges.shape[1] - 1]}, "
                f"got {list(transmittance.shape)}."
            )
        self.pending = None
        cdfs = transmittance_cdf(transmittance.detach())
        loss = transmittance.new_zeros(())
        for level in levels:
            each = interlevel_loss(edges, cdfs, level.edges, level.cdfs)
            loss = loss + each.sum() / max(each.numel(), 1)
        return loss * loss_scaler

    @torch.enable_grad()
    def update_every_n_steps(
        self, transmittance: Tensor, requires_grad: bool = False, loss_scaler: float = 1.0
    ) -> float:
        """Train the proposal networks on what the latest `sample` has kept, and advance the scheduler.

        transmittance, loss_scaler: as in `compute_loss`. requires_grad: the value that `sample` was called with; if
        False, only the scheduler advances. Returns the loss, or 0. If the loss is not finite, no parameter changes.
        """
        loss = 0.0
        if requires_grad:
            if self.optimizer is None:
                raise ConfigError(
                    "there is no optimiser to update. Give one to ProposalEstimator, or use compute_loss."
                )
            if self.pending is None:
                raise ConfigError("there is nothing to learn from. Call `sample` with requires_grad=True first.")
            loss = update_if_finite(self.optimizer, self.compute_loss(transmittance, loss_scaler))
        if self.scheduler is not None:
            self.scheduler.step()
        return loss


def update_if_finite(optimizer: torch.optim.Optimizer, total: Tensor) -> float:
    """One update of the optimiser's parameters by the loss `total` []. No parameter changes if it is not finite.

    Returns the loss. Its gradients are queued before the host waits for it, so that a GPU has work meanwhile.
    """
    optimizer.zero_grad()
    if total.requires_grad:
        total.backward()
    loss = float(total.detach())
    if math.isfinite(loss) and total.requires_grad:
        optimizer.step()
    return loss


def _offsets(stratified: bool | Tensor, rounds: int, rays: int) -> Sequence[bool | Tensor]:
    """`stratified` of each of `rounds` calls of `importance_samples`."""
    if not isinstance(stratified, Tensor):
        return [stratified] * rounds
    if tuple(stratified.shape) != (rounds, rays):
        raise ConfigError(f"`stratified` must have shape {[rounds, rays]}, got {list(stratified.shape)}.")
    return list(stratified.unbind(0))


def check_densities(densities: Tensor, ends: Tensor) -> None:
    """ConfigError unless what a density function returned fits the intervals with these ends [R, n]."""
    if densities.shape != ends.shape:
        raise ConfigError(
            f"a density must have the shape of its intervals, {list(ends.shape)}, got {list(densities.shape)}."
        )
    checks.reals(intervals=ends, density=densities)


def density_cdf(densities: Tensor, t_starts: Tensor, t_ends: Tensor, *, opaque_end: bool = True) -> Tensor:
    """densities, t_starts, t_ends [..., n] -> [..., n + 1]: the CDF of the weights at every edge. Differentiable.

    An interval of length 0 has opacity 0 for any density; otherwise an infinite density has opacity 1. A NaN density
    makes the CDF NaN at the edges behind it.
    opaque_end: the ray ends in something opaque. The CDF is then 1 at the last edge, even behind a NaN, and the last
        density is not used. If False, the CDF at the last edge is the opacity of the ray.
    """
    checks.alike(densities=densities, t_starts=t_starts, t_ends=t_ends)
    length = t_ends - t_starts
    work = torch.promote_types(densities.dtype, torch.float32)
    optical = torch.where(length == 0, 0.0, densities.to(work)) * length
    start = torch.zeros_like(optical[..., :1])
    if not opaque_end:
        return torch.cat((start, -torch.expm1(-optical.cumsum(-1))), -1)
    inner = -torch.expm1(-optical[..., :-1].cumsum(-1))
    return torch.cat((start, inner, torch.ones_like(start)), -1)


def transmittance_cdf(transmittance: Tensor) -> Tensor:
    """Transmittance [..., n] before each interval -> CDF [..., n + 1] at every edge; 1 at the last. Differentiable."""
    checks.alike(transmittance=transmittance)
    return 1.0 - torch.cat((transmittance, torch.zeros_like(transmittance[..., :1])), -1)


def sharpened(cdfs: Tensor, exponent: float) -> Tensor:
    """CDF [..., n + 1] -> CDF [..., n + 1] from 0 to 1 of the weights raised to `exponent` >= 0. Differentiable.

    With exponent 1 the input is returned. With exponent 0 every interval gets the same mass. A CDF that does not rise
    is not changed.
    """
    if exponent < 0 or not math.isfinite(exponent):
        raise ConfigError(f"`exponent` must be 0 or more, got {exponent}.")
    checks.alike(cdfs=cdfs)
    if exponent == 1.0 or cdfs.shape[-1] < 2:
        return cdfs
    weights = cdfs.diff(dim=-1).clamp_min(0)
    # Weights are divided by the largest one first, so that a large exponent does not make all of them underflow.
    largest = weights.amax(-1, keepdim=True)
    powers = power(weights / largest, exponent)
    total = powers.cumsum(-1)
    raised = torch.cat((torch.zeros_like(total[..., :1]), total / total[..., -1:]), -1)
    return torch.where(largest > 0, raised, cdfs)


def anneal_exponent(step: int, steps: int, slope: float = 10.0) -> float:
    """The exponent for `sample`: slope x / ((slope - 1) x + 1), with x = step / steps clamped to 0..1.

    It grows from 0 (every interval gets the same number of samples) to 1 (samples follow the weights). At x = 0 its
    derivative with respect to x is `slope`. mip-NeRF 360 uses slope 10.
    """
    checks.numbers(step=step)
    if steps < 1 or not 0 < slope < math.inf:
        raise ConfigError(f"`steps` must be at least 1 and `slope` positive, got {steps} and {slope}.")
    x = min(max(step / steps, 0.0), 1.0)
    return slope * x / ((slope - 1) * x + 1)


def interlevel_loss(
    edges: Tensor,
    cdfs: Tensor,
    proposal_edges: Tensor,
    proposal_cdfs: Tensor,
    *,
    packs: tuple[Pack, Pack] | None = None,
    eps: float = 1e-7,
) -> Tensor:
    """Per final interval with weight w, the part of w that the proposal does not bound from above:

        max(0, w - bound)^2 / (w + eps),   bound = sum of the proposal weights over all intervals that overlap it

    Batched: edges, cdfs [..., n + 1] and proposal_edges, proposal_cdfs [..., m + 1] -> [..., n]. Packed: flat arrays,
    with the packs of `edges` and `proposal_edges` -> one value for each interval, ray by ray. Differentiable in both
    CDFs; detach `cdfs` to train the proposal only. If the proposal of a ray has no edges, its bound is 0.
    """
    checks.alike(edges=edges, cdfs=cdfs)
    checks.alike(proposal_edges=proposal_edges, proposal_cdfs=proposal_cdfs)
    checks.reals(edges=edges, proposal_edges=proposal_edges)
    checks.numbers(eps=eps)
    if packs is None and not (edges.shape[-1] and proposal_edges.shape[-1]):
        raise ConfigError(
            f"`edges` and `proposal_edges` must have at least one edge per ray, got {list(edges.shape)} and "
            f"{list(proposal_edges.shape)}."
        )
    found = searchsorted(proposal_edges, edges, None if packs is None else (packs[1], packs[0]))
    if packs is None:
        weights = cdfs.diff(dim=-1)
        outer = proposal_cdfs.gather(-1, found.right[..., 1:]) - proposal_cdfs.gather(-1, found.left[..., :-1])
    else:
        opens = _opens(packs[0], len(edges))
        weights = cdfs[opens + 1] - cdfs[opens]
        padded = torch.cat((proposal_cdfs, proposal_cdfs.new_zeros(1)))
        outer = padded[found.right[opens + 1]] - padded[found.left[opens]]
    return (weights - outer).clamp_min(0).square() / (weights + eps)


def blurred_interlevel_loss(
    edges: Tensor,
    cdfs: Tensor,
    proposal_edges: Tensor,
    proposal_cdfs: Tensor,
    blur: float,
    *,
    packs: tuple[Pack, Pack] | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Per interval of the proposal with weight p, how far p is below the final weights, blurred (Zip-NeRF):

        max(0, w - p)^2 / (p + eps),   w = B(end) - B(start),   B(x) = (I(x + blur) - I(x - blur)) / (2 blur)

    I is the integral of the final CDF, which is linear between edges, 0 before them and constant behind them. So B is
    the CDF of the final weights after a convolution with a box of half-width `blur`, and the loss is a smooth function
    of where the final edges lie. Layouts as in `interlevel_loss`, but the result has one value for each interval of the
    proposal: [..., m] batched. Differentiable in both CDFs; detach `cdfs` to train the proposal only.
    """
    checks.alike(edges=edges, cdfs=cdfs)
    checks.alike(proposal_edges=proposal_edges, proposal_cdfs=proposal_cdfs)
    checks.reals(edges=edges, proposal_edges=proposal_edges)
    checks.numbers(eps=eps, blur=blur)
    if not 0 < blur < math.inf:
        raise ConfigError(f"`blur` must be above 0 and finite, got {blur}. For no blur, use interlevel_loss.")
    if packs is None:
        shape = proposal_edges.shape
        if not 1 <= edges.ndim == len(shape) or edges.shape[:-1] != shape[:-1] or not (edges.shape[-1] and shape[-1]):
            raise ConfigError(
                f"`edges` and `proposal_edges` must agree in all but the last axis and have at least one edge per ray, "
                f"got {list(edges.shape)} and {list(shape)}."
            )
        own, other = (
            pack_counts(torch.full((part.shape[:-1].numel(),), part.shape[-1], device=part.device))
            for part in (edges, proposal_edges)
        )
        edges, cdfs, proposal_edges, proposal_cdfs = (
            part.reshape(-1) for part in (edges, cdfs, proposal_edges, proposal_cdfs)
        )
        found = blurred_interlevel_loss(edges, cdfs, proposal_edges, proposal_cdfs, blur, packs=(own, other), eps=eps)
        return found.reshape(*shape[:-1], shape[-1] - 1)
    kind = torch.promote_types(cdfs.dtype, proposal_cdfs.dtype)
    # The difference of two nearby integrals is divided by a small width, which float32 does not have the digits for.
    places, half = proposal_edges.double(), float(blur)
    outer, inner = (_integral(edges.double(), cdfs.double(), places + d, packs) for d in (half, -half))
    blurred = (outer - inner) / (2 * half)
    opens = _opens(packs[1], len(proposal_edges))
    weights = (blurred[opens + 1] - blurred[opens]).to(kind)
    own_weights = proposal_cdfs[opens + 1] - proposal_cdfs[opens]
    return (weights - own_weights).clamp_min(0).square() / (own_weights + eps)


def _integral(edges: Tensor, cdfs: Tensor, x: Tensor, packs: tuple[Pack, Pack]) -> Tensor:
    """The integral up to x [V] of the CDF of packed rays, which is linear between edges [S] and begins with 0."""
    found = searchsorted(edges, x, packs)
    pack = Pack(*checks.pack(*packs[0], len(edges), edges.device))
    ray = pack.ray_id(len(edges))
    cdfs = cdfs - cdfs[pack.first[ray]]
    same = (ray[1:] == ray[:-1]).to(edges.dtype)
    area = torch.cat((edges.new_zeros(min(len(edges), 1)), (cdfs[1:] + cdfs[:-1]) * 0.5 * edges.diff() * same))
    area = running_sum(area, pack)
    # Index -1, of a ray without edges, reads the appended 0.
    edges, cdfs, area = (torch.cat((part, part.new_zeros(1))) for part in (edges, cdfs, area))
    left, right = found
    start, length = edges[left], edges[right] - edges[left]
    inside = torch.minimum((x - start).clamp_min(0), length)
    slope = (cdfs[right] - cdfs[left]) / torch.where(length > 0, length, 1.0)
    beyond = (x - edges[right]).clamp_min(0) * cdfs[right]
    return area[left] + inside * (cdfs[left] + 0.5 * slope * inside) + beyond


def _opens(pack: Pack, n: int) -> Tensor:
    """The indices of the edges [n] of packed rays at which an interval begins: all but the last of each ray."""
    ray = pack.ray_id(n)
    return (ray[1:] == ray[:-1]).nonzero()[:, 0]


class ProposalGate:
    """Decides at which steps to train the proposals: less and less often, finally once in about `target` steps.

    The proposals are trained if more than target * min(step / num_steps, 1) steps have passed since the last time. The
    counter `since` is the only state.
    """

    def __init__(self, target: float = 5.0, num_steps: int = 1000) -> None:
        if num_steps < 1 or not target >= 0:
            raise ConfigError(f"`num_steps` must be at least 1 and `target` 0 or more, got {num_steps} and {target}.")
        self.target, self.num_steps, self.since = target, num_steps, 0

    def __call__(self, step: int) -> bool:
        """Whether to train the proposals at this step. Call it once per step."""
        checks.numbers(step=step)
        due = self.since > min(step / self.num_steps, 1.0) * self.target
        self.since = 1 if due else self.since + 1
        return due


def get_proposal_requires_grad_fn(target: float = 5.0, num_steps: int = 1000) -> ProposalGate:
    """A `ProposalGate`, under the name of the function in nerfacc: call the result with the step."""
    return ProposalGate(target, num_steps)

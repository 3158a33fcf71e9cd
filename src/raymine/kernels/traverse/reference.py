"""The walk in plain torch: the definition.

A ray goes from cell to cell. Along a run of occupied cells it takes steps of dt(t) = max(step_size, cone_angle * t)
while the midpoint of a step lies in the run. Across an empty cell it takes steps of the length at the entry of the
cell. So with a cone the positions of samples depend on which cells are empty, and the walk must go cell by cell. Here
it does so for all rays at once, with the steps inside a cell in closed form. Distances are float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raymine.kernels.packed import Samples
from raymine.kernels.traverse.records import MOST, Crossings, Grids, Stride, Traversed, too_many

_RAYS, _PLANES = 1 << 16, 1 << 20
"""Most rays that walk together, and most planes between cells that are handled at once. They bound the memory."""


class _Rays(NamedTuple):
    """origins, directions [R, 3]; near, far [R]; `Crossings`, with hits False for rays that get no samples."""

    origins: Tensor
    directions: Tensor
    near: Tensor
    far: Tensor
    t_sorted: Tensor
    t_indices: Tensor
    hits: Tensor


class _Walked(NamedTuple):
    ray: Tensor
    t0: Tensor
    t1: Tensor
    joined: Tensor
    end: Tensor
    count: Tensor  # type: ignore[assignment]  # shadows a method of tuple


def traverse(
    origins: Tensor,
    directions: Tensor,
    bounds: tuple[Tensor, Tensor],
    grids: Grids,
    stride: Stride,
    mask: Tensor | None,
    crossings: Crossings | None,
) -> Traversed:
    """As `op.traverse`, for at least one ray and at least one cell."""
    near, far = bounds
    t_sorted, t_indices, hits = cross(origins, directions, grids.aabbs) if crossings is None else crossings
    proper = origins.isfinite().all(-1) & directions.isfinite().all(-1) & (directions != 0).any(-1)
    proper &= near.isfinite() & ~far.isnan()
    if mask is not None:
        proper &= mask
    rays = _Rays(origins, directions, near, far, t_sorted, t_indices, hits & proper[:, None])
    parts = [_walk(_Rays(*part), grids, stride) for part in zip(*(column.split(_RAYS) for column in rays), strict=True)]
    shifted = [part._replace(ray=part.ray + i * _RAYS) for i, part in enumerate(parts)]
    walked = _Walked(*(torch.cat(column) for column in zip(*shifted, strict=True)))
    edges = torch.zeros_like(walked.count).index_add_(0, walked.ray, 2 - walked.joined.long())
    first = walked.count.cumsum(0) - walked.count
    samples = Samples(walked.t0, walked.t1, walked.ray, first, walked.count)
    return Traversed(samples, walked.joined, walked.end, edges, int(edges.sum()))


def cross(origins: Tensor, directions: Tensor, aabbs: Tensor) -> Crossings:
    """Where rays enter and leave boxes: origins, directions [R, 3], aabbs [m, 6].

    A ray hits a box if some t > 0 lies in it, faces included. A ray parallel to a face is inside that slab for all t or
    for none. A box with high < low is never hit, and NaN in a ray or a box gives no hit.
    """
    o, d = origins[:, None], directions[:, None]
    low, high = aabbs[:, :3], aabbs[:, 3:]
    parallel, between = d == 0, (low <= o) & (o <= high)
    by = torch.where(parallel, torch.ones_like(d), d)
    a, b = (low - o) / by, (high - o) / by
    for_ever = torch.full_like(a, torch.inf)
    enter = torch.where(parallel, torch.where(between, -for_ever, for_ever), torch.minimum(a, b)).amax(-1)
    leave = torch.where(parallel, torch.where(between, for_ever, -for_ever), torch.maximum(a, b)).amin(-1)
    hits = (low <= high).all(-1) & ~parallel.all(-1) & (enter <= leave) & (leave > 0)
    ends = torch.cat((enter, leave), -1).masked_fill(~hits.repeat(1, 2), torch.inf)
    return Crossings(*torch.sort(ends, dim=-1, stable=True), hits)


def _walk(rays: _Rays, grids: Grids, stride: Stride) -> _Walked:
    binaries, near = grids.binaries, rays.near
    step, cone, limit = stride
    size = max(1, _PLANES // (max(1, 2 * len(binaries) - 1) * (sum(binaries.shape[1:]) + 5)))
    met = [_cells(_Rays(*part), grids) for part in zip(*(column.split(size) for column in rays), strict=True)]
    ray = torch.cat([part[0] + i * size for i, part in enumerate(met)])
    ends, full = _table(ray, torch.cat([p[1] for p in met]), torch.cat([p[2] for p in met]), len(near), step, cone)
    at = near.double()
    taken = torch.zeros_like(at)
    room = torch.full_like(at, torch.inf if limit <= 0 else float(limit))
    starts, counts = [], []
    for end, occupied in zip(ends, full, strict=True):
        dt = (at * cone).clamp(step, 1e10) if step > 0 else end - at
        ahead = end.isfinite() & (room > taken)
        if step > 0:
            skip = torch.ceil((end - at) / dt - 0.5).clamp_min(0)
            n = _steps_until(at, end, step, cone) if cone > 0 else skip
            n = torch.where(occupied & ahead, torch.minimum(n, room - taken), torch.zeros_like(n))
            later = torch.where(occupied, _after(at, n, step, cone), at + skip * dt)
        else:
            n = (occupied & ahead).double()
            later = torch.maximum(end, at)
        starts.append(at)
        counts.append(n.long())
        taken = taken + n
        at = torch.where(ahead, later, at)
    if not starts:
        none = torch.zeros(0, dtype=torch.int64, device=near.device)
        return _Walked(none, near[:0], near[:0], none.bool(), near.clone(), none.new_zeros(len(near)))
    # Order runs by ray, then along the ray; then expand each run into its samples.
    start, count = torch.stack(starts, 1).flatten(), torch.stack(counts, 1)
    if int(count.max()) > MOST:
        raise too_many(step)
    of = torch.repeat_interleave(torch.arange(count.numel(), device=near.device), count.flatten())
    k = torch.arange(len(of), device=near.device) - (count.flatten().cumsum(0) - count.flatten())[of]
    if step > 0:
        t0, t1 = _after(start[of], k.double(), step, cone), _after(start[of], k.double() + 1, step, cone)
        joined = k > 0
    else:
        t0, t1 = start[of], torch.stack(ends, 1).flatten()[of]
        after_full = torch.cat((torch.zeros_like(full[0])[None], torch.stack(full)[:-1])).T.flatten()
        joined = after_full[of]
    return _Walked(of // len(starts), t0.to(near.dtype), t1.to(near.dtype), joined, at.to(near.dtype), count.sum(1))


def _cells(rays: _Rays, grids: Grids) -> tuple[Tensor, Tensor, Tensor]:
    """Cells that rays cross, ordered by ray, then along the ray: ray id, distance of the exit, occupied or not."""
    binaries, aabbs = grids
    rays_o, rays_d, near, far, t_sorted, t_indices, hits = rays
    levels, *sides = binaries.shape
    entering, of = t_indices < levels, t_indices % levels
    # A ray that leaves a nested box is then in the box that it leaves next.
    level = torch.where(entering, of, of.roll(-1, 1))[:, :-1]
    inside = hits.gather(1, of)[:, :-1] & hits.gather(1, level) & (entering[:, :-1] | ~entering[:, 1:])
    t0, t1 = torch.maximum(t_sorted[:, :-1], near[:, None]), torch.minimum(t_sorted[:, 1:], far[:, None])
    inside &= (t0 < t1) & t1.isfinite() & (aabbs[:, :3] < aabbs[:, 3:]).all(-1)[level]
    arrived = torch.where(inside, t1, torch.full_like(t1, -torch.inf)).cummax(1).values
    arrived = torch.cat((torch.full_like(near[:, None], -torch.inf), arrived[:, :-1]), 1)
    ray = inside.nonzero()[:, 0]
    t0, t1, arrived, level = t0[inside].double()[:, None], t1[inside].double()[:, None], arrived[inside], level[inside]
    low, high = aabbs.double()[level].split(3, -1)
    o, d = rays_o.double()[ray], rays_d.double()[ray]
    # A ray parallel to planes crosses none of them; its plane distances are set to t0 below.
    by = torch.where(d == 0, torch.ones_like(d), d)
    parts = [t0]
    for axis, side in enumerate(sides):
        share = torch.arange(side + 1, device=o.device, dtype=torch.float64) / side
        begin, length = ((low - o) / by)[:, axis, None], ((high - low) / by)[:, axis, None]
        parts.append(torch.where(d[:, axis, None] != 0, begin + length * share, t0))
    # Planes outside the segment, or within rounding error of its ends, are moved to its ends. They give cells of length
    # 0, which are dropped.
    ends = torch.cat((*parts, t1), -1)
    slack = 1e-6 * (1 + t1.abs())
    ends = torch.where(ends < t0 + slack, t0, torch.where(ends > t1 - slack, t1, ends)).sort(-1).values
    before = torch.cat((t0, ends[:, :-1]), -1)
    used = ends > before
    # Column 0 is the start of the segment: an empty cell up to there, unless the ray has already reached it.
    used[:, 0] = t0[:, 0] > arrived
    of, place = used.nonzero().unbind(1)
    middle = (before[of, place] + ends[of, place])[:, None] * 0.5
    res = torch.tensor(sides, device=o.device)
    unit = (o[of] + middle * d[of] - low[of]) / (high - low)[of]
    x, y, z = torch.minimum((unit * res).long().clamp_min(0), res - 1).unbind(-1)
    return ray[of], ends[of, place], binaries[level[of], x, y, z] & (place > 0)


def _table(
    ray: Tensor, ends: Tensor, full: Tensor, n_rays: int, step: float, cone: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Columns [R]: ends of the first, second, ... runs of every ray (NaN after its last), and their occupancy.

    Neighbouring cells of the same kind are merged into runs. Exceptions: with step 0 every cell is its own run, and
    with growing steps every empty cell is.
    """
    alike = torch.where(full, step > 0, step > 0 and cone == 0)
    same = (ray[:-1] == ray[1:]) & (full[:-1] == full[1:]) & alike[:-1]
    keep = torch.cat((~same, torch.ones_like(full[:1])))
    ray, ends, full = ray[keep], ends[keep], full[keep]
    count = torch.zeros(n_rays, dtype=torch.int64, device=ray.device).index_add_(0, ray, torch.ones_like(ray))
    most = int(count.max()) if len(count) else 0
    place = torch.arange(len(ray), device=ray.device) - (count.cumsum(0) - count)[ray]
    table = ends.new_full((most, n_rays), torch.nan)
    occupied = torch.zeros(most, n_rays, dtype=torch.bool, device=ray.device)
    table[place, ray] = ends
    occupied[place, ray] = full
    return list(table), list(occupied)


def _straight(at: Tensor, step: float, cone: float) -> Tensor:
    """Number of steps of constant length from distance `at` until the step length starts to grow."""
    return torch.ceil((step / cone - at) / step).clamp_min(0)


def _steps_until(at: Tensor, end: Tensor, step: float, cone: float) -> Tensor:
    """The smallest n for which the midpoint of step n (from 0) after `at` is at or behind `end`."""
    straight = _straight(at, step, cone)
    short = torch.ceil((end - at) / step - 0.5).clamp_min(0)
    bend = at + straight * step
    growing = torch.ceil(torch.log((end / (bend * (1 + 0.5 * cone))).clamp_min(1)) / torch.log1p(bend.new_tensor(cone)))
    return torch.where(short < straight, short, straight + growing)


def _after(at: Tensor, n: Tensor, step: float, cone: float) -> Tensor:
    """Distance after n steps from `at`."""
    if cone == 0:
        return at + n * step
    straight = torch.minimum(_straight(at, step, cone), n)
    return (at + straight * step) * (1 + cone) ** (n - straight)

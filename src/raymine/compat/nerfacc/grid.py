"""Boxes and grids: `ray_aabb_intersect` and `traverse_grids`.

A ray walks from cell to cell. Along an occupied cell it takes steps of dt(t) = max(step_size, cone_angle * t), as long
as the middle of a step lies in the cell; across an empty cell it takes steps of the length that was right where it
entered. So with a cone the places of samples depend on which cells are empty, and the walk goes cell by cell: for all
rays at once here, with the steps inside a cell in closed form. Distances are summed in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raymine.compat.nerfacc.data_specs import RayIntervals, RaySamples
from raymine.errors import ConfigError
from raymine.toolkit.boxes import intersect

_RAYS, _PLANES = 1 << 16, 1 << 20
"""Rays that walk together, and planes between cells that are met at a time: what bounds the memory of a walk."""

_MOST = 1 << 24
"""Samples of one ray: float32 tells no more of them apart."""


class _Walked(NamedTuple):
    """ray, t0, t1, joined [B]: samples in order, and whether one goes on where the one before ended; end, count [R]."""

    ray: Tensor
    t0: Tensor
    t1: Tensor
    joined: Tensor
    end: Tensor
    count: Tensor  # type: ignore[assignment]  # shadows a method of tuple


@torch.no_grad()
def ray_aabb_intersect(
    rays_o: Tensor,
    rays_d: Tensor,
    aabbs: Tensor,
    near_plane: float = -float("inf"),
    far_plane: float = float("inf"),
    miss_value: float = float("inf"),
) -> tuple[Tensor, Tensor, Tensor]:
    """(n_rays, 3) rays against (m, 6) boxes: entry, exit and hit, each (n_rays, m). Not differentiable.

    A hit is decided without the planes, for t > 0; entries are then raised to near_plane, exits lowered to far_plane.
    """
    t_mins, t_maxs, hits = intersect(rays_o, rays_d, aabbs, near=-torch.inf)
    hits = hits & (t_maxs > 0)
    t_mins, t_maxs = t_mins.clamp_min(near_plane), t_maxs.clamp_max(far_plane)
    return t_mins.masked_fill(~hits, miss_value), t_maxs.masked_fill(~hits, miss_value), hits


def _ray_aabb_intersect(
    rays_o: Tensor,
    rays_d: Tensor,
    aabbs: Tensor,
    near_plane: float = -float("inf"),
    far_plane: float = float("inf"),
    miss_value: float = float("inf"),
) -> tuple[Tensor, Tensor, Tensor]:
    """`ray_aabb_intersect` with a graph; a touch is no hit here, and both ends are kept between the planes."""
    t_mins, t_maxs, hits = intersect(rays_o, rays_d, aabbs, near=-torch.inf)
    hits = hits & (t_maxs > t_mins) & (t_maxs > 0)
    t_mins, t_maxs = t_mins.clamp(near_plane, far_plane), t_maxs.clamp(near_plane, far_plane)
    return t_mins.masked_fill(~hits, miss_value), t_maxs.masked_fill(~hits, miss_value), hits


@torch.no_grad()
def traverse_grids(
    rays_o: Tensor,
    rays_d: Tensor,
    binaries: Tensor,
    aabbs: Tensor,
    near_planes: Tensor | None = None,
    far_planes: Tensor | None = None,
    step_size: float | None = 1e-3,
    cone_angle: float | None = 0.0,
    traverse_steps_limit: int | None = None,
    over_allocate: bool | None = False,
    rays_mask: Tensor | None = None,
    t_sorted: Tensor | None = None,
    t_indices: Tensor | None = None,
    hits: Tensor | None = None,
) -> tuple[RayIntervals, RaySamples, Tensor]:
    """Intervals and samples of rays (n_rays, 3) in the occupied cells of binaries (m, X, Y, Z) with boxes (m, 6).

    Where boxes overlap, the one entered last counts (for nested boxes, the innermost). step_size <= 0 gives one sample
    per occupied cell. The third result (n_rays,) is where each walk ended: with a limit, from there it goes on. A ray
    that is NaN, has a direction of zeros or is masked out has no samples and ends at its near plane. With
    `over_allocate` each ray has room for the limit, and `is_valid` tells what of it is used. Not differentiable.
    """
    if over_allocate and (traverse_steps_limit is None or traverse_steps_limit <= 0):
        raise ConfigError("`over_allocate` needs a `traverse_steps_limit` of 1 or more, to know how much room to make.")
    crossings = None if t_sorted is None or t_indices is None or hits is None else (t_sorted, t_indices, hits)
    walked = walk(
        rays_o, rays_d, binaries, aabbs, near_planes, far_planes, step_size or 0.0, cone_angle or 0.0,
        traverse_steps_limit or -1, rays_mask, crossings,
    )  # fmt: skip
    rays = len(rays_o)
    edges_of = 2 - walked.joined.long()
    edge_count = torch.zeros_like(walked.count).index_add_(0, walked.ray, edges_of)
    n_edges = int(edges_of.sum())
    right = edges_of.cumsum(0) - 1
    edge_ray = torch.repeat_interleave(walked.ray, edges_of, output_size=n_edges)
    vals, is_left, is_right = walked.t0.new_empty(n_edges), edge_ray.new_zeros(n_edges), edge_ray.new_zeros(n_edges)
    vals[right - 1] = walked.t0
    vals[right] = walked.t1
    is_left[right - 1] = 1
    is_right[right] = 1
    # An edge that two samples share has one value: the end of the first.
    vals[right[:-1][walked.joined[1:]]] = walked.t1[:-1][walked.joined[1:]]
    samples = [(walked.t0 + walked.t1) * 0.5, walked.ray, torch.ones_like(walked.joined)]
    edges = [vals, edge_ray, is_left.bool(), is_right.bool()]
    if over_allocate and traverse_steps_limit is not None:
        mask = torch.ones(rays, dtype=torch.bool, device=rays_o.device) if rays_mask is None else rays_mask
        samples = _spread(samples, walked.count, mask, traverse_steps_limit)
        edges = _spread(edges, edge_count, mask, traverse_steps_limit * 2)
    intervals = RayIntervals(
        vals=edges[0], packed_info=_info(edge_count), ray_indices=edges[1], is_left=edges[2], is_right=edges[3]
    )
    found = RaySamples(vals=samples[0], packed_info=_info(walked.count), ray_indices=samples[1], is_valid=samples[2])
    return intervals, found, walked.end


def _info(count: Tensor) -> Tensor:
    return torch.stack((count.cumsum(0) - count, count), -1)


def _spread(columns: list[Tensor], count: Tensor, mask: Tensor, room: int) -> list[Tensor]:
    """Columns [n] of rays with count [R] rows each, moved to where every ray of the mask has `room` rows."""
    first, start = count.cumsum(0) - count, (mask.long().cumsum(0) - 1) * room
    ray = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
    to = start[ray] + torch.arange(len(ray), device=count.device) - first[ray]
    size = int(mask.sum()) * room
    return [column.new_zeros(size).index_copy_(0, to, column) for column in columns]


def walk(
    rays_o: Tensor,
    rays_d: Tensor,
    binaries: Tensor,
    aabbs: Tensor,
    near_planes: Tensor | None,
    far_planes: Tensor | None,
    step: float,
    cone: float,
    limit: int = -1,
    rays_mask: Tensor | None = None,
    crossings: tuple[Tensor, Tensor, Tensor] | None = None,
) -> _Walked:
    """`traverse_grids` as plain tensors; `crossings` are t_sorted, t_indices and hits."""
    if binaries.ndim != 4 or aabbs.shape != (len(binaries), 6):
        raise ConfigError(
            f"grids must be binaries [m, X, Y, Z] with aabbs [m, 6], got {list(binaries.shape)} and "
            f"{list(aabbs.shape)}."
        )
    if not cone >= 0:
        raise ConfigError(f"`cone_angle` must be 0 or more, got {cone}.")
    near = torch.zeros_like(rays_o[:, 0]) if near_planes is None else near_planes
    far = torch.full_like(rays_o[:, 0], torch.inf) if far_planes is None else far_planes
    if crossings is None:
        t_mins, t_maxs, hits = ray_aabb_intersect(rays_o, rays_d, aabbs)
        crossings = (*torch.sort(torch.cat((t_mins, t_maxs), -1), dim=-1), hits)
    proper = rays_o.isfinite().all(-1) & rays_d.isfinite().all(-1) & (rays_d != 0).any(-1)
    proper &= near.isfinite() & ~far.isnan()
    if rays_mask is not None:
        proper &= rays_mask
    columns = (rays_o, rays_d, near, far, crossings[0], crossings[1], crossings[2] & proper[:, None])
    if not len(rays_o):
        none = torch.zeros(0, dtype=torch.int64, device=rays_o.device)
        return _Walked(none, near[:0], near[:0], none.bool(), near[:0], none)
    parts = [
        _walk_some(part, binaries, aabbs, step, cone, limit)
        for part in zip(*(column.split(_RAYS) for column in columns), strict=True)
    ]
    shifted = [part._replace(ray=part.ray + i * _RAYS) for i, part in enumerate(parts)]
    return _Walked(*(torch.cat(column) for column in zip(*shifted, strict=True)))


def _walk_some(
    rays: tuple[Tensor, ...], binaries: Tensor, aabbs: Tensor, step: float, cone: float, limit: int
) -> _Walked:
    """rays: origins, directions, near, far, t_sorted, t_indices and hits."""
    near = rays[2]
    size = max(1, _PLANES // (max(1, 2 * len(binaries) - 1) * (sum(binaries.shape[1:]) + 5)))
    met = [_cells(part, binaries, aabbs) for part in zip(*(column.split(size) for column in rays), strict=True)]
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
    # Ray by ray, each with its cells in order; then every cell's samples.
    start, count = torch.stack(starts, 1).flatten(), torch.stack(counts, 1)
    if int(count.max()) > _MOST:
        raise ConfigError(f"steps of {step:g} give a ray more than {_MOST} samples. Take longer steps.")
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


def _cells(rays: tuple[Tensor, ...], binaries: Tensor, aabbs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The cells that rays meet, ray by ray and in order: ray, where it leaves the cell, whether that is occupied."""
    rays_o, rays_d, near, far, t_sorted, t_indices, hits = rays
    levels, *sides = binaries.shape
    entering, of = t_indices < levels, t_indices % levels
    # Leaving a box inside another one, a ray is back in the one that it leaves next.
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
    # A ray that is parallel to planes meets none of them.
    by = torch.where(d == 0, torch.ones_like(d), d)
    parts = [t0]
    for axis, side in enumerate(sides):
        share = torch.arange(side + 1, device=o.device, dtype=torch.float64) / side
        begin, length = ((low - o) / by)[:, axis, None], ((high - low) / by)[:, axis, None]
        parts.append(torch.where(d[:, axis, None] != 0, begin + length * share, t0))
    # Planes outside the segment, or at its ends but for rounding, bound cells without length, which are dropped.
    ends = torch.cat((*parts, t1), -1)
    slack = 1e-6 * (1 + t1.abs())
    ends = torch.where(ends < t0 + slack, t0, torch.where(ends > t1 - slack, t1, ends)).sort(-1).values
    before = torch.cat((t0, ends[:, :-1]), -1)
    used = ends > before
    # The first end of a segment is its beginning: an empty cell up to there, unless the ray was there already.
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
    """Columns [R]: ends of the first, second, ... cells of every ray (NaN behind its last), and their occupancies.

    Neighbours become one where nothing changes: samples go on through occupied cells unless each cell is one sample,
    and empty cells are alike unless steps grow.
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
    """How many steps of constant length a ray takes before they grow."""
    return torch.ceil((step / cone - at) / step).clamp_min(0)


def _steps_until(at: Tensor, end: Tensor, step: float, cone: float) -> Tensor:
    """The smallest n with the middle of the n-th step from `at` at or behind `end`."""
    straight = _straight(at, step, cone)
    short = torch.ceil((end - at) / step - 0.5).clamp_min(0)
    bend = at + straight * step
    growing = torch.ceil(torch.log((end / (bend * (1 + 0.5 * cone))).clamp_min(1)) / torch.log1p(bend.new_tensor(cone)))
    return torch.where(short < straight, short, straight + growing)


def _after(at: Tensor, n: Tensor, step: float, cone: float) -> Tensor:
    """Where a ray is after n steps from `at`."""
    if cone == 0:
        return at + n * step
    straight = torch.minimum(_straight(at, step, cone), n)
    return (at + straight * step) * (1 + cone) ** (n - straight)


def _enlarge_aabb(aabb: Tensor, factor: float) -> Tensor:
    """A box [6] about the same centre, `factor` times as large."""
    centre, half = (aabb[:3] + aabb[3:]) / 2, (aabb[3:] - aabb[:3]) / 2
    return torch.cat((centre - half * factor, centre + half * factor))


def _query(x: Tensor, data: Tensor, base_aabb: Tensor) -> tuple[Tensor, Tensor]:
    """Values of data (m, X, Y, Z), in boxes that double, at points (N, 3), 0 outside of all; and what is inside."""
    unit = (x - base_aabb[:3]) / (base_aabb[3:] - base_aabb[:3]) - 0.5
    level = torch.frexp(unit.abs().amax(-1).clamp_min(0.1))[1].long().add(1).clamp_min(0)
    inside = level < len(data)
    res = torch.tensor(data.shape[1:], device=x.device)
    at = ((unit / (2.0**level)[:, None] + 0.5) * res).long()
    i, j, k = torch.minimum(at.clamp_min(0), res - 1).unbind(-1)
    return data[level.clamp_max(len(data) - 1), i, j, k] * inside, inside

"""`nerfacc.grid`: rays against boxes and occupancy grids."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.compat.nerfacc.data_specs import RayIntervals, RaySamples
from raymine.errors import ConfigError
from raymine.kernels.traverse.op import Crossings, Grids, Stride, traverse
from raymine.toolkit.boxes import intersect


@torch.no_grad()
def ray_aabb_intersect(
    rays_o: Tensor,
    rays_d: Tensor,
    aabbs: Tensor,
    near_plane: float = -float("inf"),
    far_plane: float = float("inf"),
    miss_value: float = float("inf"),
) -> tuple[Tensor, Tensor, Tensor]:
    """Intersect rays (n_rays, 3) with boxes (m, 6): entry, exit and hit, each (n_rays, m). Not differentiable.

    A ray hits a box if some t > 0 lies in it; the planes do not matter for that. Entries are then clamped to at least
    near_plane and exits to at most far_plane. Both are miss_value if there is no hit.
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
    """As `ray_aabb_intersect`, but differentiable.

    A ray that only touches a box does not hit it. Entry and exit are both clamped to near_plane .. far_plane.
    """
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

    Where boxes overlap, the one that the ray entered last is used (for nested boxes, the innermost). step_size <= 0
    gives one sample per occupied cell. The third result (n_rays,) is the distance at which each walk ended; with a
    limit, a later call can continue from there. A ray that is NaN, has a direction of zeros or is masked out gets no
    samples and ends at its near plane. over_allocate: allocate `traverse_steps_limit` samples per ray; `is_valid` is
    True for those that are used. Not differentiable.
    """
    if over_allocate and (traverse_steps_limit is None or traverse_steps_limit <= 0):
        raise ConfigError("`over_allocate` needs a `traverse_steps_limit` of 1 or more, to know how much room to make.")
    known = t_sorted is not None and t_indices is not None and hits is not None
    near = torch.zeros_like(rays_o[:, 0]) if near_planes is None else near_planes
    far = torch.full_like(rays_o[:, 0], torch.inf) if far_planes is None else far_planes
    walked = traverse(
        rays_o,
        rays_d,
        (near, far),
        Grids(binaries, aabbs),
        Stride(step_size or 0.0, cone_angle or 0.0, traverse_steps_limit or 0),
        rays_mask,
        Crossings(t_sorted, t_indices, hits) if known else None,  # type: ignore[arg-type]  # none of them is None
    )
    taken = walked.samples
    # Starts are written before ends. So an edge that two samples share holds the end of the first sample.
    right = (2 - walked.joined.long()).cumsum(0) - 1
    left = right - 1
    vals, edge_ray = taken.t_start.new_empty(walked.n_edges), taken.ray_id.new_empty(walked.n_edges)
    is_left, is_right = (walked.joined.new_zeros(walked.n_edges) for _ in range(2))
    for place, distance, side in ((left, taken.t_start, is_left), (right, taken.t_end, is_right)):
        vals.index_copy_(0, place, distance)
        edge_ray.index_copy_(0, place, taken.ray_id)
        side.index_fill_(0, place, True)
    samples = [(taken.t_start + taken.t_end) * 0.5, taken.ray_id, torch.ones_like(walked.joined)]
    edges = [vals, edge_ray, is_left, is_right]
    if over_allocate and traverse_steps_limit is not None:
        samples = _spread(samples, taken.ray_id, taken.count, rays_mask, traverse_steps_limit)
        edges = _spread(edges, edge_ray, walked.edges, rays_mask, traverse_steps_limit * 2)
    intervals = RayIntervals(
        vals=edges[0], packed_info=_info(walked.edges), ray_indices=edges[1], is_left=edges[2], is_right=edges[3]
    )
    found = RaySamples(
        vals=samples[0], packed_info=torch.stack(taken.pack, -1), ray_indices=samples[1], is_valid=samples[2]
    )
    return intervals, found, walked.end


def _info(count: Tensor) -> Tensor:
    return torch.stack((count.cumsum(0) - count, count), -1)


def _spread(columns: list[Tensor], ray: Tensor, count: Tensor, mask: Tensor | None, room: int) -> list[Tensor]:
    """Move the rows of columns [n] so that every ray of the mask has `room` rows; unused rows are 0.

    ray [n]: the ray of each row. count [R]: rows of each ray. With a mask, this waits for the device.
    """
    first = count.cumsum(0) - count
    if mask is None:
        places, live = torch.arange(len(count), device=count.device), len(count)
    else:
        places, live = mask.long().cumsum(0) - 1, int(mask.sum())
    to = (places * room - first)[ray] + torch.arange(len(ray), device=count.device)
    return [column.new_zeros(live * room).index_copy_(0, to, column) for column in columns]


def _enlarge_aabb(aabb: Tensor, factor: float) -> Tensor:
    """The box [6], enlarged by `factor` about its centre."""
    centre, half = (aabb[:3] + aabb[3:]) / 2, (aabb[3:] - aabb[:3]) / 2
    return torch.cat((centre - half * factor, centre + half * factor))


def _query(x: Tensor, data: Tensor, base_aabb: Tensor) -> tuple[Tensor, Tensor]:
    """Values (N,) of data (m, X, Y, Z) at points (N, 3), 0 outside all boxes; and whether each point is inside (N,).

    Box k is base_aabb [6], enlarged by 2^k. A point reads the smallest box that contains it.
    """
    unit = (x - base_aabb[:3]) / (base_aabb[3:] - base_aabb[:3]) - 0.5
    level = torch.frexp(unit.abs().amax(-1).clamp_min(0.1))[1].long().add(1).clamp_min(0)
    inside = level < len(data)
    res = torch.tensor(data.shape[1:], device=x.device)
    at = ((unit / (2.0**level)[:, None] + 0.5) * res).long()
    i, j, k = torch.minimum(at.clamp_min(0), res - 1).unbind(-1)
    return data[level.clamp_max(len(data) - 1), i, j, k] * inside, inside

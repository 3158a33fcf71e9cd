"""Marching in plain torch: the definition. It computes all candidate intervals of all rays, then filters them.

An interval is kept if its midpoint lies between the bounds of the ray, and in an occupied cell of the finest level that
contains the midpoint.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels.march.occupancy import Occupancy
from raymine.kernels.march.spacing import MOST, Spacing, too_many


def clip_to_box(
    origins: Tensor, directions: Tensor, near: Tensor, far: Tensor, grid: Occupancy
) -> tuple[Tensor, Tensor]:
    """[R] entry and exit of the outermost box, restricted to near .. far.

    exit < entry for a ray that misses the box or is not finite.
    """
    low, high = (torch.tensor(side, device=origins.device, dtype=origins.dtype) for side in (grid.low, grid.high))
    centre, half = (low + high) * 0.5, (high - low) * (0.5 * 2 ** (grid.levels - 1))
    # A ray parallel to a slab gives -inf and inf inside it, and a miss outside. In the plane of a face it gives NaN,
    # which counts as inside.
    a, b = (centre - half - origins) / directions, (centre + half - origins) / directions
    entry = torch.minimum(a, b).nan_to_num(-torch.inf, torch.inf, -torch.inf).amax(-1)
    leave = torch.maximum(a, b).nan_to_num(torch.inf, torch.inf, -torch.inf).amin(-1)
    leave = torch.where((origins + directions).sum(-1).isfinite(), leave, -torch.inf)
    return torch.maximum(entry, near), torch.minimum(leave, far)


def cell_of(points: Tensor, grid: Occupancy) -> tuple[Tensor, Tensor, Tensor]:
    """[n, 3] world positions -> level [n] int64, cell index in that level [n] int64, inside the grid [n] bool."""
    if not points.is_floating_point() or points.shape[-1:] != (3,):
        raise ConfigError(f"`points` must be floating point [n, 3], got {points.dtype} of shape {list(points.shape)}.")
    low, high = (torch.tensor(side, device=points.device, dtype=points.dtype) for side in (grid.low, grid.high))
    unit = (points - (low + high) * 0.5) / (high - low) * 2.0
    reach = unit.abs().amax(-1)
    # NaN is outside of the grid, but its level exists too, so that it can be looked up.
    level = torch.ceil(torch.log2(reach.clamp_min(1e-30))).nan_to_num(0.0).clamp(0, grid.levels - 1)
    res = grid.resolution
    at = ((unit * torch.exp2(-level)[..., None] + 1.0) * (0.5 * res)).floor().long().clamp(0, res - 1)
    index = (at[..., 0] * res + at[..., 1]) * res + at[..., 2]
    return level.long(), index, reach <= 2.0 ** (grid.levels - 1)


def is_occupied(points: Tensor, grid: Occupancy) -> Tensor:
    """[n, 3] world positions -> [n] bool: whether the cell of each point is occupied; False outside the grid."""
    level, index, inside = cell_of(points, grid)
    return ((grid.bits[level, index >> 3] >> (index & 7).to(torch.uint8)) & 1).bool() & inside


def march(
    origins: Tensor, directions: Tensor, near: Tensor, far: Tensor, grid: Occupancy, spacing: Spacing, jitter: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """-> t_start [B], t_end [B], ray_id [B] int64, count [R] int64."""
    entry, leave = clip_to_box(origins, directions, near, far, grid)
    hit = leave > entry
    start = spacing.count_at(torch.where(hit, entry, torch.zeros_like(entry))) + jitter
    stop = spacing.count_at(torch.where(hit, leave, torch.zeros_like(leave)))
    steps = torch.where(hit, stop - start, torch.zeros_like(start))
    if not bool((steps <= MOST).all()):
        raise too_many(spacing)
    most = int(steps.ceil().clamp_min(0).max()) if len(hit) else 0
    u = start[:, None] + torch.arange(most, device=origins.device, dtype=origins.dtype)
    t0, t1 = spacing.distance_at(u), spacing.distance_at(u + 1.0)
    middle = (t0 + t1) * 0.5
    keep = hit[:, None] & (middle < leave[:, None])
    points = torch.where(keep[..., None], origins[:, None] + middle[..., None] * directions[:, None], 0.0)
    keep &= is_occupied(points.reshape(-1, 3), grid).reshape(keep.shape)
    ray_id = keep.nonzero()[:, 0]
    return t0[keep], t1[keep], ray_id, keep.sum(-1)

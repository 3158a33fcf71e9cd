"""Marching rays through a multi-level occupancy grid: checks and dispatch. Not differentiable."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks, dispatch
from raymine.kernels.march import reference
from raymine.kernels.march.occupancy import Occupancy as Occupancy
from raymine.kernels.march.occupancy import pack_bits as pack_bits
from raymine.kernels.march.reference import cell_of as cell_of
from raymine.kernels.march.spacing import MOST, too_many
from raymine.kernels.march.spacing import Spacing as Spacing
from raymine.kernels.packed import Samples


def march(
    origins: Tensor,
    directions: Tensor,
    near: Tensor,
    far: Tensor,
    grid: Occupancy,
    spacing: Spacing,
    jitter: Tensor | None = None,
) -> Samples:
    """Packed intervals (float32) of the rays whose midpoint lies in an occupied cell, between near and far.

    origins, directions: [R, 3] float32. Distances are in units of the length of the direction.
    near, far: [R]. A ray with far <= near, or one that misses the outermost box, gets no interval.
    jitter: [R] in -1..1. It shifts the intervals of each ray by that fraction of a step; None means 0.
    ConfigError if the steps are so short that a ray has more than 2^24. Not differentiable.
    """
    rays = origins.shape[0] if origins.ndim else 0
    named = (
        ("origins", origins, (rays, 3)),
        ("directions", directions, (rays, 3)),
        ("near", near, (rays,)),
        ("far", far, (rays,)),
        ("jitter", jitter, (rays,)),
    )
    checks.floats(named, grid.bits.device, torch.float32)
    _check_steps(grid, spacing)
    if jitter is None:
        jitter = torch.zeros_like(near)
    else:
        if checks.readable(jitter) and not bool((jitter.abs() <= 1).all()):
            raise ConfigError(f"`jitter` must be in -1 .. 1, got {float(jitter.min()):g} .. {float(jitter.max()):g}.")
        # The midpoint of interval 0 would lie before near. So the ray starts at interval 1, which is the same shift.
        jitter = torch.where(jitter < -0.5, jitter + 1, jitter)
    backend = dispatch.choose("march", origins.device)
    inputs = (origins, directions, near, far, grid, spacing, jitter)
    if backend == "reference":
        t_start, t_end, ray_id, count = reference.march(*inputs)
    else:
        with dispatch.kernel_lock:
            t_start, t_end, ray_id, count = dispatch.kernels("march", backend).march_packed(*inputs)
    return Samples(t_start, t_end, ray_id, count.cumsum(0) - count, count)


def _check_steps(grid: Occupancy, spacing: Spacing) -> None:
    """A ray along the diagonal of the outermost box must not have too many steps. Shorter steps cannot be counted."""
    diagonal = math.dist(grid.low, grid.high) * 2 ** (grid.levels - 1)
    if diagonal / spacing.shortest > MOST and float(spacing.count_at(torch.tensor(diagonal))) > MOST:
        raise too_many(spacing)

"""Marching rays through a multi-level occupancy grid: checks and dispatch. Not differentiable."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.march import reference
from raymine.kernels.march.occupancy import Occupancy as Occupancy
from raymine.kernels.march.occupancy import pack_bits as pack_bits
from raymine.kernels.march.reference import cell_of as cell_of
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
    Not differentiable.
    """
    rays = origins.shape[0]
    for name, value, shape in (
        ("origins", origins, (rays, 3)),
        ("directions", directions, (rays, 3)),
        ("near", near, (rays,)),
        ("far", far, (rays,)),
        ("jitter", jitter, (rays,)),
    ):
        if value is not None and tuple(value.shape) != shape:
            raise ConfigError(f"`{name}` must have shape {list(shape)}, got {list(value.shape)}.")
        if value is not None and value.device != grid.bits.device:
            raise ConfigError(f"`{name}` is on {value.device} but the occupancy grid is on {grid.bits.device}.")
    if jitter is None:
        jitter = torch.zeros_like(near)
    backend = dispatch.choose("march", origins.device)
    if backend == "gpu":
        from raymine.kernels.march import gpu

        t_start, t_end, ray_id, count = gpu.march_packed(origins, directions, near, far, grid, spacing, jitter)
    elif backend == "cpu":
        from raymine.kernels.march import cpu

        with dispatch.kernel_lock:
            t_start, t_end, ray_id, count = cpu.march(origins, directions, near, far, grid, spacing, jitter)
    else:
        t_start, t_end, ray_id, count = reference.march(origins, directions, near, far, grid, spacing, jitter)
    return Samples(t_start, t_end, ray_id, count.cumsum(0) - count, count)

"""Stages that training and rendering share: samples along rays, and the field at them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from raymine.fused.buffers import Buffers
from raymine.fused.grid import DeviceGrid
from raymine.fused.model import HalfModel
from raymine.kernels._triton import programs
from raymine.kernels.march.gpu import CHUNK, march
from raymine.kernels.ngp_step.gpu import infer

SLOTS, STRIDE = 8, 8
"""Rays that a program follows at a time, and samples of each: 0.26 ms for 280 k samples, 16 x 4 take 0.33."""
_PROGRAMS = 6
"""Programs a multiprocessor: 4 and 8 take 8 % longer."""


def march_rays(buffers: Buffers, grid: DeviceGrid, n_rays: Tensor) -> None:
    """Fill the packed samples of the first n_rays [1] rays. Rays beyond the room get none, and are counted as lost."""
    config = grid.sampler.config
    constants = {
        "CONE": config.cone > 0,
        "RES": config.resolution,
        "LEVELS": grid.levels,
        "CHUNK": CHUNK,
        "num_warps": 1,
    }
    arguments = (
        buffers.rays, buffers.jitter, n_rays, grid.bytes, grid.box, grid.spacing, buffers.counted,
        buffers.running, buffers.count, buffers.first, buffers.t_start, buffers.t_end, buffers.ray_id,
        buffers.n_samples, buffers.n_lost, buffers.capacity,
    )  # fmt: skip
    launch = (programs(grid.bytes.device, 32),)
    buffers.counted.zero_()
    buffers.n_lost.zero_()
    march[launch](*arguments, WRITE=False, **constants)
    torch.cumsum(buffers.counted, 0, dtype=torch.int32, out=buffers.running)
    buffers.n_marched.copy_(buffers.running[-1:])
    buffers.n_samples.copy_(buffers.n_marched)
    march[launch](*arguments, WRITE=True, **constants)


def ask_field(buffers: Buffers, model: HalfModel, n_rays: Tensor, stop: float) -> None:
    """Pre-activations of the samples that rays see."""
    most_optical = -math.log(stop) if stop > 0 else math.inf
    buffers.queue.zero_()
    infer[(programs(buffers.raw.device, _PROGRAMS),)](
        buffers.rays, buffers.harmonics, buffers.first, buffers.count, buffers.t_start, buffers.t_end, n_rays,
        *model.arguments, most_optical, buffers.queue, buffers.seen, buffers.raw,
        **model.constants, SLOTS=SLOTS, STRIDE=STRIDE, num_warps=4,
    )  # fmt: skip

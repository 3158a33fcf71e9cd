"""Stages that training and rendering share: sampling along rays, and evaluating the field."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from raymine.engines.fused.buffers import Buffers
from raymine.engines.fused.grid import DeviceGrid
from raymine.engines.fused.model import HalfModel
from raymine.kernels._triton import programs
from raymine.kernels.march.gpu import CHUNK, MARCHERS, march
from raymine.kernels.ngp_step.gpu import infer

SLOTS, STRIDE = 4, 16
"""Rays that a program processes at a time, and samples of each per round. Samples of one ray share table entries, but
with more samples per round, more of them lie behind the early stop: 4 x 16 take 0.13 ms, 8 x 8 0.15 and 2 x 32 0.16.
A view of bonsai takes 12.5, 13.1 and 15.3 ms, with 16 x 4 14.4 ms."""
_PROGRAMS = 6
"""Programs per multiprocessor, of which 3 run at a time."""
_REGISTERS = 168
"""Most registers per thread. Without a limit, only 2 programs run at a time: 0.19 instead of 0.13 ms."""


def march_rays(buffers: Buffers, grid: DeviceGrid, n_rays: Tensor) -> None:
    """Fill the buffers with the packed samples of the first n_rays [1] rays.

    A ray whose samples do not fit gets none, and is counted in `n_lost`.
    """
    config = grid.sampler.config
    constants = {
        "CONE": config.cone > 0,
        "RES": config.resolution,
        "LEVELS": grid.levels,
        "CHUNK": CHUNK,
        "num_warps": 1,
    }
    arguments = (
        buffers.rays, buffers.jitter, n_rays, grid.bytes, grid.box, grid.spacing, buffers.counted, buffers.running,
        buffers.count, buffers.first, buffers.seen, buffers.hitting, buffers.t_start, buffers.t_end, buffers.ray_id,
        buffers.totals, buffers.capacity, len(buffers.counted),
    )  # fmt: skip
    launch = (programs(grid.bytes.device, MARCHERS),)
    march[launch](*arguments, WRITE=False, **constants)
    torch.cumsum(buffers.counted, 0, out=buffers.running)
    march[launch](*arguments, WRITE=True, **constants)


def ask_field(buffers: Buffers, model: HalfModel, stop: float) -> None:
    """Fill `raw` with the pre-activations of samples, up to the early stop of each ray. Call it after `march_rays`."""
    most_optical = -math.log(stop) if stop > 0 else math.inf
    infer[(programs(buffers.raw.device, _PROGRAMS),)](
        buffers.rays, buffers.harmonics, buffers.first, buffers.count, buffers.hitting, buffers.n_hitting,
        buffers.t_start, buffers.t_end, *model.arguments, most_optical, buffers.queue, buffers.seen, buffers.raw,
        **model.constants, SLOTS=SLOTS, STRIDE=STRIDE, num_warps=4, maxnreg=_REGISTERS,
    )  # fmt: skip

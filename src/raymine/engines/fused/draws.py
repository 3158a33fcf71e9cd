"""Sampling schemes of hard sample mining that need all samples at once.

`systematic` uses a running sum; `multinomial` and `topk` use a sort. The host reads nothing back, so that a CUDA graph
can contain them. `poisson` needs neither, and has its own kernel (`kernels.select.gpu.select`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raymine.engines.fused.buffers import TrainBuffers
from raymine.kernels.philox.op import Stream
from raymine.kernels.select.gpu import keys
from raymine.mining import HardConfig

_BLOCK = 1024


class Course(NamedTuple):
    """State of a run on the device: seed [2], step [1]; control [2], found [4] of `kernels.ngp_step.gpu_control`."""

    seed: Tensor
    step: Tensor
    control: Tensor
    found: Tensor


def choose_samples(buffers: TrainBuffers, config: HardConfig, course: Course) -> None:
    """Fill index, weight and n_chosen of the buffers with the samples that `mining.Miner` would choose."""
    value = torch.empty(buffers.capacity, dtype=torch.float64, device=buffers.size.device)
    wanted = course.found[3:4]
    keys[(buffers.capacity // _BLOCK,)](
        buffers.size, buffers.n_samples, course.control, wanted, course.seed, course.step, value,
        STREAM=int(Stream.MINING), RACE=config.draw == "multinomial", LARGEST=config.draw == "topk", BLOCK=_BLOCK,
    )  # fmt: skip
    chance = (buffers.size * course.control[0]).clamp_max(1.0)
    if config.draw == "systematic":
        whole = value.cumsum(0).floor_()
        taken = (torch.diff(whole, prepend=whole.new_zeros(1)) > 0) & (chance > 0)
    else:
        taken, lost = _first(value, wanted)
        chance = -torch.expm1(-(buffers.size * (course.control[0] / wanted)).double() * lost).float()
    index = torch.nonzero_static(taken, size=buffers.capacity, fill_value=0)[:, 0]
    buffers.index.copy_(index)
    buffers.weight.copy_(1 / chance[index] if config.reweight == "unbiased" else torch.ones_like(chance))
    buffers.n_chosen.copy_(taken.sum())


def _first(key: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """[n] bool: which keys [n] are finite and among the `wanted` [1] smallest; and [1]: the smallest other key."""
    ordered, order = key.sort(stable=True)
    count = wanted.floor().clamp_min(1).long()
    first = (torch.arange(len(key), device=key.device) < count) & ordered.isfinite()
    lost = torch.where(count < len(key), ordered[count.clamp_max(len(key) - 1)], torch.inf)
    return torch.zeros_like(first).scatter_(0, order, first), lost

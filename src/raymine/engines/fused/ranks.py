"""What the ranks of a run tell each other in a fused step.

Every rank draws all rays of a step, which takes microseconds, and marches those of its own slice. Two things are
summed over the ranks:

1. After `judge`: the sums of loss, weights and gradient norms, and how many samples each rank has. So all ranks find
   the same tau and budget, and a draw for a sample goes by its index among the samples of all ranks.
2. Before the update: the gradients of the layers and of the table, and the counts that a step reports.

The rest of a step is the same on every rank: parameters, occupancy grid, ray count and reports.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raymine.engines.fused.buffers import TrainBuffers
from raymine.step.distributed.ranks import Ranks

_SUMS = 8
"""Sums of `judge` for each program."""


class Judged(NamedTuple):
    """What `judge` found: sums [programs, 8], and n_samples [1] int32. first [1] int32: see `select.gpu.select`."""

    sums: Tensor
    programs: int
    n_samples: Tensor
    first: Tensor


class Counts(NamedTuple):
    """Samples that were marched and chosen, and rays that found no room [1] int32."""

    marched: Tensor
    chosen: Tensor
    lost: Tensor


class DeviceRanks:
    """The ranks of a run, as a fused step uses them. With one process, nothing is sent or computed."""

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        self._ranks = ranks
        self.active = ranks.active
        self.silent = False
        """Whether nothing is sent, as while kernels are compiled: ranks are not equally quick there."""
        self.in_graph = not ranks.active or ranks.backend == "nccl"
        """Whether messages can be part of a CUDA graph: those of NCCL are kernels, those of gloo go by the host."""
        self._zero = torch.zeros(1, dtype=torch.int32, device=device)
        self._message = torch.zeros(_SUMS + ranks.world, dtype=torch.float64, device=device)
        self._counts = torch.zeros(3, dtype=torch.int32, device=device)

    def keep_own_rays(self, buffers: TrainBuffers, n_rays: Tensor) -> None:
        """Leave the rays of other ranks without samples and without weight."""
        if not self.active:
            return
        rank, world = self._ranks.rank, self._ranks.world
        row = torch.arange(buffers.max_rays, device=n_rays.device)
        n = n_rays.long()
        own = (row >= n * rank // world) & (row < n * (rank + 1) // world)
        near, far, weight = buffers.rays[:, 6], buffers.rays[:, 7], buffers.wanted[:, 6]
        far.copy_(torch.where(own, far, near))
        weight.copy_(torch.where(own, weight, 0.0))

    def sum_judged(self, buffers: TrainBuffers, sums: Tensor) -> None:
        """Sum what `judge` found over the ranks."""
        if not self.active:
            return
        own = self._message.zero_()
        own[:_SUMS] = sums.sum(0)
        own[_SUMS + self._ranks.rank : _SUMS + self._ranks.rank + 1] = buffers.n_samples
        self._sum(own)

    def judged(self, buffers: TrainBuffers, sums: Tensor) -> Judged:
        """What `judge` found on all ranks. Call it after `sum_judged`."""
        if not self.active:
            return Judged(sums, len(sums), buffers.n_samples, self._zero)
        counts = self._message[_SUMS:].to(torch.int32)
        before = counts[: self._ranks.rank].sum(0, keepdim=True, dtype=torch.int32)
        every = counts.sum(0, keepdim=True, dtype=torch.int32)
        return Judged(self._message[:_SUMS].float()[None], 1, every, before)

    def add_up(self, buffers: TrainBuffers, *gradients: Tensor) -> None:
        """Replace gradients by their sums over the ranks, and send the counts of the step."""
        if not self.active:
            return
        self._counts.copy_(torch.cat((buffers.n_marched, buffers.n_chosen, buffers.n_lost)))
        for part in (self._counts, *gradients):
            self._sum(part)

    def _sum(self, values: Tensor) -> None:
        if not self.silent:
            self._ranks.add_up(values)

    def counts(self, buffers: TrainBuffers) -> Counts:
        """The counts of the step, of all ranks. Call it after `add_up`."""
        if not self.active:
            return Counts(buffers.n_marched, buffers.n_chosen, buffers.n_lost)
        return Counts(*self._counts.split(1))

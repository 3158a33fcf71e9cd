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
import triton
from torch import Tensor

from raymine.engines.fused.buffers import TrainBuffers
from raymine.kernels._triton import power_of_two
from raymine.kernels.ngp_step.gpu_ranks import join_counts, keep_own, pack, unpack
from raymine.step.distributed.ranks import Ranks

_SUMS = 8
"""Sums of `judge` for each program."""
_BLOCK = 1024


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
        self._of = ranks.rank, ranks.world
        self._power = power_of_two(ranks.world)
        self._zero = torch.zeros(1, dtype=torch.int32, device=device)
        self._message = torch.zeros(_SUMS + ranks.world, dtype=torch.float64, device=device)
        self._counts = torch.zeros(3, dtype=torch.int32, device=device)
        self._sums = torch.zeros(1, _SUMS, device=device)
        self._every, self._first = (torch.zeros(1, dtype=torch.int32, device=device) for _ in range(2))

    def keep_own_rays(self, buffers: TrainBuffers, n_rays: Tensor) -> None:
        """Leave the rays of other ranks without samples and without weight."""
        if self.active:
            launch = (triton.cdiv(buffers.max_rays, _BLOCK),)
            keep_own[launch](buffers.rays, buffers.wanted, n_rays, *self._of, BLOCK=_BLOCK)

    def sum_judged(self, buffers: TrainBuffers, sums: Tensor) -> None:
        """Sum what `judge` found over the ranks."""
        if not self.active:
            return
        pack[(1,)](
            sums, len(sums), buffers.n_samples, self._message, *self._of, SUMS=power_of_two(len(sums)),
            WORLD=self._power, num_warps=8,
        )  # fmt: skip
        self._sum(self._message)

    def judged(self, buffers: TrainBuffers, sums: Tensor) -> Judged:
        """What `judge` found on all ranks. Call it after `sum_judged`."""
        if not self.active:
            return Judged(sums, len(sums), buffers.n_samples, self._zero)
        unpack[(1,)](self._message, *self._of, self._sums, self._every, self._first, WORLD=self._power, num_warps=1)
        return Judged(self._sums, 1, self._every, self._first)

    def add_up(self, buffers: TrainBuffers, *gradients: Tensor) -> None:
        """Replace gradients by their sums over the ranks, and send the counts of the step."""
        if not self.active:
            return
        join_counts[(1,)](buffers.n_marched, buffers.n_chosen, buffers.n_lost, self._counts, num_warps=1)
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

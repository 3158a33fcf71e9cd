"""The occupancy grid on the device, with one byte per cell. Updates do not read anything back to the host."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from raymine.engines.fused.model import HalfModel
from raymine.kernels.march.gpu import spacing_numbers
from raymine.kernels.ngp_step.gpu_grid import fit, list_cells, mark, put, visit
from raymine.samplers import OccupancySampler

_TILE = 32
"""Cells per program of `visit`. From 64 rows on, Hopper uses other matrix instructions. With networks 128 wide, ptxas
12.8 miscompiles these here: it reads the address of an operand from a register that was never set."""
_BLOCK = 1024
_MARKED = 4096
"""Cells per program of `mark`. With fewer cells, more programs would contend for the atomics on the extent."""


class DeviceGrid:
    """The occupancy grid of a sampler for the fused kernels. It updates the `values` of the sampler in place.

    bytes [levels, cells] uint8: 1 where a cell is occupied. box [12], spacing [7]: see `kernels.march.gpu.march`.
    """

    def __init__(self, sampler: OccupancySampler, seed: Tensor, step: Tensor) -> None:
        config, device = sampler.config, sampler.values.device
        self.sampler, self.seed, self.step = sampler, seed, step
        self.levels, self.cells = sampler.values.shape
        self.bytes = torch.empty(self.levels, self.cells, dtype=torch.uint8, device=device)
        low, high = (torch.tensor(side, device=device) for side in (sampler.bounds.low, sampler.bounds.high))
        self._low, self._high, self._side = low, high, (high - low) / config.resolution
        self.box = torch.cat(((low + high) / 2, 2 / (high - low), low, high))
        self.spacing = spacing_numbers(sampler.spacing, device)
        self.half = max(1, min(config.cells, self.cells) // 2)
        self.decay, self._mean = torch.full((1,), config.decay, device=device), torch.zeros(self.levels, device=device)
        self._extent = torch.tensor([config.resolution] * 3 + [0] * 3, dtype=torch.int32, device=device)
        self._listed, self._ranks = (
            torch.zeros(n, dtype=torch.int32, device=device) for n in (2 * self.half, self.half)
        )
        self._found = torch.zeros(2 * self.half, device=device)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Recompute `bytes` and the box around the occupied cells from the values of the sampler."""
        values = self.sampler.values
        if not self.sampler.swept:
            self.bytes.fill_(1)
            self.box[6:] = self._whole_box()
            return
        config, one = self.sampler.config, self.levels == 1
        torch.mean(values, -1, out=self._mean)
        mark[(triton.cdiv(self.cells, _MARKED), self.levels)](
            values, self._mean, config.threshold, self.bytes, self._extent, self.cells, RES=config.resolution, FIT=one,
            BLOCK=_MARKED, num_warps=8,
        )  # fmt: skip
        if one:
            fit[(1,)](self._extent, self._low, self._side, self.box[6:], RES=config.resolution, num_warps=1)
        else:
            self.box[6:] = self._whole_box()

    def _whole_box(self) -> Tensor:
        reach = 2.0 ** (self.levels - 1)
        centre, half = (self._low + self._high) / 2, (self._high - self._low) / 2 * reach
        return torch.cat((centre - half, centre + half))

    @torch.no_grad()
    def update(self, model: HalfModel, everything: bool) -> None:
        """One update as in `OccupancySampler.update`, of all cells or of some. It can be captured in a CUDA graph."""
        for level in range(self.levels):
            values = self.sampler.values[level]
            if everything:
                self._visit(model, level, values, True)
                continue
            self._list(level)
            self._visit(model, level, self._found, False)
            for clear in (True, False):
                put[(triton.cdiv(2 * self.half, _BLOCK),)](
                    self._listed, self._found, values, 2 * self.half, self.cells, CLEAR=clear, BLOCK=_BLOCK
                )
        self.refresh()

    def _list(self, level: int) -> None:
        """Choose the cells to visit: half of the list among all cells, half among the occupied cells.

        If there are too few occupied cells, the list is padded with the index `cells`, which means no cell.
        """
        running = self.bytes[level].cumsum(0, dtype=torch.int32)
        arguments = (self.seed, self.step, level, self.levels, running[-1:], self.cells, self.half)
        list_cells[(triton.cdiv(self.half, _BLOCK),)](*arguments, self._listed, self._ranks, BLOCK=_BLOCK)
        torch.searchsorted(running, self._ranks, out_int32=True, out=self._listed[self.half :])

    def _visit(self, model: HalfModel, level: int, out: Tensor, everything: bool) -> None:
        """out = max(decay * value, opacity at a random point) of every cell, or of the listed cells."""
        config, values = self.sampler.config, self.sampler.values[level]
        visit[(triton.cdiv(len(out), _TILE),)](
            self._listed, len(out), self.seed, self.step, level, self.levels, float(2**level), self.box, config.step,
            self.decay, values, out, *model.arguments, **model.constants, RES=config.resolution, ALL=everything,
            TILE=_TILE,
        )  # fmt: skip

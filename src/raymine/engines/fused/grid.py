"""The occupancy grid on the device, one byte a cell, updated without the host knowing what is in it."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from raymine.engines.fused.model import HalfModel
from raymine.kernels.march.gpu import spacing_numbers
from raymine.kernels.ngp_step.gpu_grid import fit, list_cells, mark, put, visit
from raymine.samplers import OccupancySampler

_TILE = 32
"""Cells of a program that visits them. For 64 and more a Hopper has other matrix products, and with networks 128 wide
ptxas 12.8 gets them wrong here: where an operand lies is read from a register that nothing has set."""
_BLOCK = 1024
_MARKED = 4096
"""Cells of a program that also finds their extent: with fewer, more programs would queue to add theirs."""


class DeviceGrid:
    """Works on the `values` of a sampler, in place."""

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
        """Bytes and the box of what is occupied, from the values."""
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
        """One update as in `OccupancySampler.update`; nothing here depends on the host, so that it can be captured."""
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
        """Half spread over all cells, half over the occupied ones; where these are fewer, the list ends in `cells`."""
        running = self.bytes[level].cumsum(0, dtype=torch.int32)
        arguments = (self.seed, self.step, level, self.levels, running[-1:], self.cells, self.half)
        list_cells[(triton.cdiv(self.half, _BLOCK),)](*arguments, self._listed, self._ranks, BLOCK=_BLOCK)
        torch.searchsorted(running, self._ranks, out_int32=True, out=self._listed[self.half :])

    def _visit(self, model: HalfModel, level: int, out: Tensor, everything: bool) -> None:
        """The larger of what is remembered and what is found, of every cell or of those that are listed."""
        config, values = self.sampler.config, self.sampler.values[level]
        visit[(triton.cdiv(len(out), _TILE),)](
            self._listed, len(out), self.seed, self.step, level, self.levels, float(2**level), self.box, config.step,
            self.decay, values, out, *model.arguments, **model.constants, RES=config.resolution, ALL=everything,
            TILE=_TILE,
        )  # fmt: skip

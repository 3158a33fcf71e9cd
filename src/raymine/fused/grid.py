"""The occupancy grid on the device, one byte a cell, updated without the host knowing what is in it."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from raymine.fused.model import HalfModel
from raymine.kernels.march.gpu import spacing_numbers
from raymine.kernels.ngp_step.gpu_grid import list_cells, visit
from raymine.samplers import OccupancySampler

_TILE = 128


class DeviceGrid:
    """Works on the `values` of a sampler, in place."""

    def __init__(self, sampler: OccupancySampler, seed: Tensor, step: Tensor) -> None:
        config, device = sampler.config, sampler.values.device
        self.sampler, self.seed, self.step = sampler, seed, step
        self.levels, self.cells = sampler.values.shape
        self.bytes = torch.empty(self.levels, self.cells, dtype=torch.uint8, device=device)
        low, high = (torch.tensor(side, device=device) for side in (sampler.bounds.low, sampler.bounds.high))
        self._low, self._high = low, high
        self.box = torch.cat(((low + high) / 2, 2 / (high - low), low, high))
        self.spacing = spacing_numbers(sampler.spacing, device)
        self.half = max(1, min(config.cells, self.cells) // 2)
        self.decay = torch.full((), config.decay, device=device)
        self._listed = torch.zeros(2 * self.half, dtype=torch.int64, device=device)
        self._ranks = torch.zeros(self.half, dtype=torch.int32, device=device)
        self._found = torch.zeros(max(self.cells, 2 * self.half), device=device)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Bytes and the box of what is occupied, from the values."""
        values = self.sampler.values
        if not self.sampler.swept:
            self.bytes.fill_(1)
            self.box[6:] = self._whole_box()
            return
        limit = values.mean(-1, keepdim=True).clamp_max(self.sampler.config.threshold)
        self.bytes.copy_(values > limit)
        self._fit_box()

    def _whole_box(self) -> Tensor:
        reach = 2.0 ** (self.levels - 1)
        centre, half = (self._low + self._high) / 2, (self._high - self._low) / 2 * reach
        return torch.cat((centre - half, centre + half))

    def _fit_box(self) -> None:
        """A box around what is occupied; with several levels, all of it. Nothing is read back."""
        if self.levels > 1:
            self.box[6:] = self._whole_box()
            return
        res = self.sampler.config.resolution
        grid = self.bytes.view(res, res, res)
        side = (self._high - self._low) / res
        place = torch.arange(res, device=grid.device, dtype=torch.float32)
        flat = grid.amax(2)
        lines = (flat.amax(1), flat.amax(0), grid.amax(0).amax(0))
        first = torch.stack([torch.where(line > 0, place, float(res)).amin() for line in lines])
        last = torch.stack([torch.where(line > 0, place + 1, 0.0).amax() for line in lines])
        self.box[6:9] = self._low + side * first
        self.box[9:12] = self._low + side * last

    @torch.no_grad()
    def update(self, model: HalfModel, everything: bool) -> None:
        """One update as in `OccupancySampler.update`; nothing here depends on the host, so that it can be captured."""
        for level in range(self.levels):
            values = self.sampler.values[level]
            if everything:
                alpha = self._visit(model, level, self.cells, True)
                torch.maximum(values * self.decay, alpha, out=values)
                continue
            self._list(level)
            alpha = self._visit(model, level, 2 * self.half, False)
            # A cell may be listed twice: it decays once, since both write the same, and takes the larger value.
            values[self._listed] = values[self._listed] * self.decay
            values.scatter_reduce_(0, self._listed, alpha, "amax")
        self.refresh()

    def _list(self, level: int) -> None:
        """Half spread over all cells, half over the occupied ones."""
        running = (self.bytes[level] > 0).cumsum(0, dtype=torch.int32)
        arguments = (self.seed, self.step, level, self.levels, running[-1:], self.cells, self.half)
        list_cells[(triton.cdiv(self.half, 1024),)](*arguments, self._listed, self._ranks, BLOCK=1024)
        found, anywhere = torch.searchsorted(running, self._ranks), self._listed[: self.half]
        # Where too few are occupied, the rest of the list repeats its first half.
        self._listed[self.half :] = torch.where(found < self.cells, found, anywhere)

    def _visit(self, model: HalfModel, level: int, n: int, everything: bool) -> Tensor:
        config = self.sampler.config
        visit[(triton.cdiv(n, _TILE),)](
            self._listed, n, self.seed, self.step, level, self.levels, float(2**level), self.box, config.step,
            self._found, *model.arguments, **model.constants, RES=config.resolution, ALL=everything, TILE=_TILE,
        )  # fmt: skip
        return self._found[:n]

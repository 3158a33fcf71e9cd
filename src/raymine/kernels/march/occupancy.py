"""The occupancy grid as a bitfield: one bit per cell on several nested levels, and a coarse copy to skip empty space.

Level 0 covers the inner box with `resolution`^3 cells. Level g covers a box 2^g times as large around the same centre.
A point belongs to the finest level that contains it. Cell (x, y, z) is bit (x * res + y) * res + z, low bit first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks

BLOCK = 8
"""Cells per side of a block of the coarse copy."""

MOST_RESOLUTION, MOST_LEVELS = 1024, 16
"""Most cells per side, and most levels: more would take gigabytes of memory."""


@dataclass(frozen=True)
class Occupancy:
    """An occupancy grid.

    bits [G, res^3 / 8] uint8: one bit per cell. blocks [G, (res / 8)^3] uint8: 1 where a block has an occupied cell.
    low, high: corners of the inner box in world units.
    """

    bits: Tensor
    blocks: Tensor
    resolution: int
    low: tuple[float, float, float]
    high: tuple[float, float, float]

    def __post_init__(self) -> None:
        res, levels = self.resolution, self.bits.shape[0] if self.bits.ndim else 0
        if not 0 < res <= MOST_RESOLUTION or res % BLOCK or not 0 < levels <= MOST_LEVELS:
            raise ConfigError(
                f"an occupancy grid must have a `resolution` in {BLOCK} .. {MOST_RESOLUTION} that is a multiple of "
                f"{BLOCK}, and 1 .. {MOST_LEVELS} levels; got {res} and {levels}."
            )
        checks.shapes(
            (("bits", self.bits, (levels, res**3 // 8)), ("blocks", self.blocks, (levels, (res // BLOCK) ** 3))),
            self.bits.device,
        )
        for name, part in (("bits", self.bits), ("blocks", self.blocks)):
            if part.dtype != torch.uint8:
                raise ConfigError(f"`{name}` must be uint8, got {part.dtype}. `pack_bits` makes it from booleans.")
        if not all(-math.inf < a < b < math.inf for a, b in zip(self.low, self.high, strict=True)):
            raise ConfigError(f"the box must have low < high on every axis, got {self.low} and {self.high}.")

    @property
    def levels(self) -> int:
        """G."""
        return self.bits.shape[0]

    @cached_property
    def cells(self) -> Tensor:
        """[G, res^3] uint8: 1 where a cell is occupied. One byte per cell, for kernels that look up single cells."""
        place = torch.arange(8, dtype=torch.uint8, device=self.bits.device)
        return ((self.bits[:, :, None] >> place) & 1).reshape(self.levels, -1)

    @cached_property
    def box_numbers(self) -> Tensor:
        """[12] float32 on the device of the bits: centre and 2 / sides of the inner box, low and high of the outermost.

        Kept, because a copy from the host waits for all that the device has been given to do.
        """
        low, high = (torch.tensor(side, device=self.bits.device) for side in (self.low, self.high))
        reach = (high - low) * (0.5 * 2 ** (self.levels - 1))
        centre = (low + high) * 0.5
        return torch.cat((centre, 2 / (high - low), centre - reach, centre + reach))

    @cached_property
    def occupied_box(self) -> tuple[np.ndarray, np.ndarray]:
        """low, high [3] float32: a box that contains every occupied cell. With several levels it is the whole grid.

        If no cell is occupied, low is above high.
        """
        low, high = np.array(self.low, np.float32), np.array(self.high, np.float32)
        if self.levels > 1:
            centre, half = (low + high) / 2, (high - low) * np.float32(0.5 * 2 ** (self.levels - 1))
            return centre - half, centre + half
        n = self.resolution // BLOCK
        blocks = self.blocks.cpu().numpy().reshape(n, n, n)
        ranges = [np.flatnonzero(blocks.any(axis=tuple({0, 1, 2} - {axis}))) for axis in range(3)]
        if not len(ranges[0]):
            return high, low
        side = (high - low) / np.float32(n)
        first, last = (np.array([part[end] for part in ranges], np.float32) for end in (0, -1))
        return low + side * first, low + side * (last + 1)


def pack_bits(occupied: Tensor, low: tuple[float, float, float], high: tuple[float, float, float]) -> Occupancy:
    """occupied [G, res, res, res] bool -> Occupancy with the inner box low .. high. `res` must be a multiple of 8."""
    levels, res = occupied.shape[:2] if occupied.ndim == 4 else (0, 0)
    if not levels or not res or occupied.shape != (levels, res, res, res) or res % BLOCK:
        raise ConfigError(f"`occupied` must be [G, res, res, res] with res % {BLOCK} == 0, got {list(occupied.shape)}.")
    if occupied.dtype != torch.bool:
        raise ConfigError(f"`occupied` must be bool, got {occupied.dtype}.")
    place = torch.tensor([1 << i for i in range(8)], dtype=torch.uint8, device=occupied.device)
    bits = (occupied.reshape(levels, -1, 8).to(torch.uint8) * place).sum(-1, dtype=torch.uint8)
    n = res // BLOCK
    blocks = occupied.reshape(levels, n, BLOCK, n, BLOCK, n, BLOCK).amax(dim=(2, 4, 6)).reshape(levels, -1)
    return Occupancy(bits, blocks.to(torch.uint8), res, low, high)

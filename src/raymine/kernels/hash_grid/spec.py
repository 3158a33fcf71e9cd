"""The shape of a multi-resolution grid, and every number derived from it.

Symbols, for level l: scale = base * growth^l - 1; res = ceil(scale) + 1 vertices a side; a point x in 0..1 lies at
x * scale + 0.5; entries = res^3 rounded up to 8 but at most 2^log2_entries. A level whose res^3 fits is indexed
densely, x + res * (y + res * z); the others by XOR hash. Both wrap into the level's entries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raymine.errors import ConfigError

PRIMES = (1, 2654435761, 805459861)


@dataclass(frozen=True)
class GridSpec:
    """levels x features, table size, coarsest and finest resolution."""

    levels: int = 16
    features: int = 2
    log2_entries: int = 19
    base: int = 16
    finest: int = 2048

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= 32:
            raise ConfigError(f"`levels` must be in 1 .. 32, got {self.levels}.")
        if self.features not in (1, 2, 4, 8):
            raise ConfigError(f"`features` must be 1, 2, 4 or 8, got {self.features}.")
        if not 4 <= self.log2_entries <= 24:
            raise ConfigError(f"`log2_entries` must be in 4 .. 24, got {self.log2_entries}.")
        if not 2 <= self.base <= self.finest:
            raise ConfigError(f"`base` must be at least 2 and at most `finest`; got {self.base} and {self.finest}.")

    @cached_property
    def scales(self) -> np.ndarray:
        """[L] float64."""
        growth = 1.0 if self.levels == 1 else math.exp(math.log(self.finest / self.base) / (self.levels - 1))
        return np.array([self.base * growth**level - 1.0 for level in range(self.levels)])

    @cached_property
    def resolutions(self) -> np.ndarray:
        """[L] int64: vertices a side."""
        # The finest level's power is a hair off an integer in floating point; the tolerance keeps ceil() honest.
        return np.ceil(self.scales - 1e-9).astype(np.int64) + 1

    @cached_property
    def entries(self) -> np.ndarray:
        """[L] int64: entries of each level."""
        return np.minimum((self.resolutions**3 + 7) // 8 * 8, 1 << self.log2_entries)

    @cached_property
    def offsets(self) -> np.ndarray:
        """[L] int64: first entry of each level in the table."""
        return np.concatenate(([0], np.cumsum(self.entries)[:-1])).astype(np.int64)

    @cached_property
    def dense(self) -> np.ndarray:
        """[L] bool: indexed densely."""
        return self.resolutions**3 <= self.entries

    @property
    def total_entries(self) -> int:
        return int(self.entries.sum())

    @property
    def width(self) -> int:
        """Length of an encoding: levels * features."""
        return self.levels * self.features


@dataclass(frozen=True)
class GrownSpec(GridSpec):
    """As `GridSpec`, but each level is `growth` times as fine as the one before; `finest` follows from it.

    Scales are rounded to float32 at every step, as tiny-cuda-nn computes them. Where base * growth^l is a whole number,
    that rounding decides whether the level has one vertex more, and so how many entries a table has.
    """

    growth: float = 2.0

    def __post_init__(self) -> None:
        if not 1 <= self.growth < math.inf:
            raise ConfigError(f"`growth` must be at least 1 and finite, got {self.growth}.")
        object.__setattr__(self, "finest", int(np.ceil(self.scales[-1])) + 1 if self.levels > 0 else self.base)
        super().__post_init__()
        if self.finest >= 1 << 20:
            raise ConfigError(f"`base` and `growth` make a finest level of {self.finest}; it must stay below 2^20.")

    @cached_property
    def scales(self) -> np.ndarray:
        """[L] float64, each of them a float32."""
        return np.array([grown_scale(level, self.growth, self.base) for level in range(self.levels)])


def grown_scale(level: int, growth: float, base: int) -> float:
    """base * growth^level - 1 with every step rounded to float32."""
    # Through float64, because the float32 powers of NumPy differ in the last bit from one processor to another.
    exponent = np.float32(level) * np.float32(math.log2(np.float32(growth)))
    # A level finer than 2^64 is finer than any float32 position: the limit only keeps the power from overflowing.
    return float(np.float32(2.0 ** min(float(exponent), 64.0)) * np.float32(base) - np.float32(1.0))

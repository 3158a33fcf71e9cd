"""The shape of a multi-resolution hash grid, and the numbers that follow from it.

For level l: scale = base * growth^l - 1, and res = ceil(scale) + 1 vertices per side. A point x in 0..1 has the grid
coordinate x * scale + 0.5. The level has entries = min(res^3 rounded up to a multiple of 8, 2^log2_entries). If all
res^3 vertices fit, the index of a vertex is x + res * (y + res * z) (dense); otherwise it is an XOR hash. Both are
taken modulo entries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raymine.errors import ConfigError

PRIMES = (1, 2654435761, 805459861)
"""Factors of x, y and z in the hash."""


@dataclass(frozen=True)
class GridSpec:
    """Shape of a grid: number of levels, features per entry, log2 of the most entries per level, and resolutions.

    base, finest: resolution of the coarsest and of the finest level; those between grow geometrically.
    """

    levels: int = 16
    features: int = 2
    log2_entries: int = 19
    base: int = 16
    finest: int = 2048

    def __post_init__(self) -> None:
        _check_levels(self.levels)
        if self.features not in (1, 2, 4, 8):
            raise ConfigError(f"`features` must be 1, 2, 4 or 8, got {self.features}.")
        if not 4 <= self.log2_entries <= 24:
            raise ConfigError(f"`log2_entries` must be in 4 .. 24, got {self.log2_entries}.")
        if not 2 <= self.base <= self.finest <= 1 << 20:
            raise ConfigError(
                f"`base` must be at least 2 and at most `finest`, which is at most 2^20; got {self.base} and "
                f"{self.finest}."
            )

    @cached_property
    def scales(self) -> np.ndarray:
        """[L] float64: the factor from positions in 0..1 to grid coordinates."""
        growth = 1.0 if self.levels == 1 else math.exp(math.log(self.finest / self.base) / (self.levels - 1))
        return np.array([self.base * growth**level - 1.0 for level in range(self.levels)])

    @cached_property
    def resolutions(self) -> np.ndarray:
        """[L] int64: vertices per side."""
        # Rounding may move the finest scale just above an integer; the tolerance keeps ceil() from adding one then.
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
        """[L] bool: whether the level is indexed densely rather than by hash."""
        return self.resolutions**3 <= self.entries

    @property
    def total_entries(self) -> int:
        """Rows of the table: entries of all levels."""
        return int(self.entries.sum())

    @property
    def width(self) -> int:
        """Length of an encoding: levels * features."""
        return self.levels * self.features


@dataclass(frozen=True)
class GrownSpec(GridSpec):
    """A `GridSpec` that is given by `growth`, the ratio of resolutions of successive levels, instead of `finest`.

    Every step of the computation of a scale is rounded to float32, as in tiny-cuda-nn. If base * growth^l is an
    integer, this rounding decides whether the level has one more vertex per side, and so the number of table entries.
    """

    growth: float = 2.0

    def __post_init__(self) -> None:
        if not 1 <= self.growth < math.inf:
            raise ConfigError(f"`growth` must be at least 1 and finite, got {self.growth}.")
        _check_levels(self.levels)
        if not 2 <= self.base < 1 << 20:
            raise ConfigError(f"`base` must be in 2 .. 2^20 - 1, got {self.base}.")
        object.__setattr__(self, "finest", int(np.ceil(self.scales[-1])) + 1)
        super().__post_init__()
        if self.finest >= 1 << 20:
            raise ConfigError(f"`base` and `growth` make a finest level of {self.finest}; it must stay below 2^20.")

    @cached_property
    def scales(self) -> np.ndarray:
        """[L] float64; each value is exactly a float32."""
        return np.array([grown_scale(level, self.growth, self.base) for level in range(self.levels)])


def _check_levels(levels: int) -> None:
    if not 1 <= levels <= 32:
        raise ConfigError(f"`levels` must be in 1 .. 32, got {levels}.")


def grown_scale(level: int, growth: float, base: int) -> float:
    """base * growth^level - 1 with every step rounded to float32."""
    # The power is computed in float64, because NumPy's float32 power differs in the last bit between processors.
    exponent = np.float32(level) * np.float32(math.log2(np.float32(growth)))
    # The limit of 2^64 only prevents an overflow: such a level is finer than float32 positions can resolve.
    return float(np.float32(2.0 ** min(float(exponent), 64.0)) * np.float32(base) - np.float32(1.0))

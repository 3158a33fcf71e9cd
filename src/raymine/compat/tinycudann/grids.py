"""Grids of trainable features: hashed, dense or tiled, over 2, 3 or 4 dimensions.

For level l of L, with D dimensions:

    scale = base * growth^l - 1
    res = ceil(scale) + 1 vertices per side
    grid coordinate of a point x in 0..1 = x * scale + 0.5

    entries   Dense   res^D rounded up to a multiple of 8
              Tiled   the same, at most base^D
              Hash    the same, at most 2^log2_hashmap_size

The row of a vertex (i_0, i_1, ...) in its level is (i_0 + i_1 res + i_2 res^2 + ...) modulo entries. The sum stops at
the first power of res that exceeds entries. In a Hash level with res^D > entries the row is
(i_0 p_0) xor (i_1 p_1) xor ... modulo entries, with primes p and products modulo 2^32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from raymine.compat.tinycudann.encoder import Encoder
from raymine.compat.tinycudann.options import Options, next_multiple
from raymine.errors import ConfigError
from raymine.kernels.hash_grid.op import PRIMES, GrownSpec, encode, grown_scale

HASH_PRIMES = (*PRIMES, 3674653429)
KINDS = ("Hash", "Dense", "Tiled")
INTERPOLATIONS = ("Linear", "Smoothstep", "Nearest")
MOST_LEVELS = 128
MOST_ROWS = 2**31


@dataclass(frozen=True)
class GridLayout:
    """Shape of a grid, and the row of the table for each vertex.

    dims: D. kind: one of KINDS. features: per row. log2_entries: of a Hash level. base, growth: as in the module
    docstring.
    """

    dims: int
    kind: str
    levels: int
    features: int
    log2_entries: int
    base: int
    growth: float

    @cached_property
    def scales(self) -> list[float]:
        """Scale of each level."""
        return [grown_scale(level, self.growth, self.base) for level in range(self.levels)]

    @cached_property
    def resolutions(self) -> list[int]:
        """Vertices per side of each level."""
        return [math.ceil(scale) + 1 for scale in self.scales]

    @cached_property
    def entries(self) -> list[int]:
        """Rows of each level in the table."""
        most = {"Hash": 1 << self.log2_entries, "Tiled": self.base**self.dims}.get(self.kind, MOST_ROWS)
        return [min(next_multiple(res**self.dims, 8), most) for res in self.resolutions]

    @cached_property
    def spec(self) -> GrownSpec | None:
        """The same layout for the op `hash_grid`; None if it does not support it. It needs D = 3, Hash or Dense."""
        log2_entries = self.log2_entries if self.kind == "Hash" else 24
        fits = self.dims == 3 and self.kind != "Tiled" and self.levels <= 32 and 4 <= log2_entries <= 24
        if not fits or self.base < 2 or self.growth < 1 or max(self.resolutions) >= 1 << 20:
            return None
        spec = GrownSpec(self.levels, self.features, log2_entries, self.base, growth=self.growth)
        return spec if spec.entries.tolist() == self.entries else None

    def rows(self, cell: Tensor, level: int, corners: int) -> Tensor:
        """Low vertices of cells [n, D] int64 -> rows [n, corners] in the level. Bit d of a corner adds 1 to axis d."""
        entries, res = self.entries[level], self.resolutions[level]
        hashed = self.kind == "Hash" and res**self.dims > entries
        found, stride = torch.zeros_like(cell[:, :1]), 1
        for dim in range(self.dims):
            if not hashed and stride > entries:
                # Further dimensions do not change the row, but each still doubles the number of corners.
                found = torch.cat([found, found], 1) if corners > 1 else found
                continue
            near = cell[:, dim : dim + 1]
            sides = (near, near + 1) if corners > 1 else (near,)
            if hashed:
                steps = [(side * HASH_PRIMES[dim]) & 0xFFFFFFFF for side in sides]
                found = torch.cat([found ^ step for step in steps], 1)
            else:
                found = torch.cat([found + side * stride for side in sides], 1)
            stride *= res
        return found % entries


def interpolate(x: Tensor, table: Tensor, layout: GridLayout, interpolation: str) -> Tensor:
    """x [n, D] in 0..1, table [rows, F] -> [n, L * F], in plain torch. Differentiable in both, any number of times."""
    levels = []
    # `split` gives all levels at once. With separate slices, each would have a gradient of the size of the whole table.
    for level, part in enumerate(table.split(layout.entries)):
        at = x * layout.scales[level] + 0.5
        cell = at.detach().floor()
        if interpolation == "Nearest":
            # Constant almost everywhere. Adding x * 0 keeps x in the graph, with gradient 0.
            found = embedding(layout.rows(cell.long(), level, 1)[:, 0], part)
            levels.append(found + (x * 0).sum(-1, keepdim=True))
            continue
        fraction = at - cell
        if interpolation == "Smoothstep":
            fraction = fraction * fraction * (3 - 2 * fraction)
        weight = torch.ones_like(fraction[:, :1])
        for dim in range(layout.dims):
            far = fraction[:, dim : dim + 1]
            weight = torch.cat([weight * (1 - far), weight * far], 1)
        values = embedding(layout.rows(cell.long(), level, 1 << layout.dims), part)
        levels.append((weight[:, :, None] * values).sum(1))
    return torch.cat(levels, -1)


class GridEncoder(Encoder):
    """A grid encoding. Its parameters are the table [rows, F], row by row, the coarsest level first."""

    fill = 0.0

    def __init__(self, n_input_dims: int, options: Options) -> None:
        default = {"tiledgrid": "Tiled", "densegrid": "Dense"}.get(options.otype.lower(), "Hash")
        if n_input_dims not in (2, 3, 4):
            raise ConfigError(f"{options.otype} encodes 2, 3 or 4 dimensions, got `n_input_dims` = {n_input_dims}.")
        kind = options.value("type", default)
        kind = "Tiled" if str(kind).lower() == "tile" else options.choice("type", default, KINDS)
        features = options.whole("n_features_per_level", 2)
        if features not in (1, 2, 4, 8):
            raise ConfigError(f"`n_features_per_level` of {options.otype} must be 1, 2, 4 or 8, got {features}.")
        levels = _levels(options, features)
        base = options.whole("base_resolution", 16, high=1 << 20)
        usual = math.exp(math.log(256 / base) / max(levels - 1, 1)) if kind == "Dense" else 2.0
        growth = options.number("per_level_scale", usual)
        if growth <= 0:
            raise ConfigError(f"`per_level_scale` of {options.otype} must be above 0, got {growth}.")
        self.interpolation = options.choice("interpolation", "Linear", INTERPOLATIONS)
        options.refuse("hash", "CoherentPrime")
        options.refuse("stochastic_interpolation", False)
        log2_entries = options.whole("log2_hashmap_size", 19, low=0, high=31)
        self.layout = GridLayout(n_input_dims, kind, levels, features, log2_entries, base, growth)
        self.n_input_dims, self.n_output_dims, self.alignment = n_input_dims, levels * features, features
        self.n_params = sum(self.layout.entries) * features
        if self.n_params >= MOST_ROWS:
            raise ConfigError(
                f"This {options.otype} would have {self.n_params} parameters; 2^31 is too many. Lower `n_levels`, "
                "`per_level_scale` or `base_resolution`, or use the type Hash with `log2_hashmap_size`."
            )

    def bounds(self) -> list[tuple[int, float]]:
        return [(self.n_params, 1e-4)]

    def __call__(self, x: Tensor, params: Tensor, half: bool, loss_scale: float | None) -> Tensor:
        table, spec = params.view(-1, self.layout.features), self.layout.spec
        if spec is not None and self.interpolation == "Linear" and x.dtype != torch.float64:
            # If a network follows, the result is float32, so that its gradient is not in half precision.
            wide = half and loss_scale is not None
            return encode(x, table, spec, precision="fp16" if half else "fp32", kind=torch.float32 if wide else None)
        # A point with NaN has no row: it reads those of 0, and the result is replaced by NaN. Infinity is clamped.
        lost = x.isnan().any(-1, keepdim=True)
        x = torch.where(lost, 0.0, x).clamp(0.0, 1.0)
        out = interpolate(x, _rounded(table) if half else table, self.layout, self.interpolation)
        return torch.where(lost, math.nan, out)

    def hyperparams(self) -> dict[str, Any]:
        layout = self.layout
        found = {
            "otype": "Grid",
            "type": layout.kind,
            "n_levels": layout.levels,
            "n_features_per_level": layout.features,
            "base_resolution": layout.base,
            "per_level_scale": layout.growth,
            "interpolation": self.interpolation,
            "hash": "CoherentPrime",
        }
        return found | ({"log2_hashmap_size": layout.log2_entries} if layout.kind == "Hash" else {})


def _rounded(table: Tensor) -> Tensor:
    """The table, rounded to half precision, in its own type; the gradient ignores the rounding (straight-through)."""
    return table + (table.half().to(table.dtype) - table).detach()


def _levels(options: Options, features: int) -> int:
    """The number of levels, from `n_levels`, or from the width of the encoding (`n_features`, `n_grid_features`)."""
    for name in ("n_features", "n_grid_features"):
        if name not in options:
            continue
        if "n_levels" in options:
            raise ConfigError(f"`{name}` and `n_levels` of {options.otype} say the same thing twice. Leave one out.")
        width = options.whole(name, 32, high=MOST_LEVELS * features)
        if width % features:
            raise ConfigError(f"`{name}` of {options.otype} must be a multiple of {features}, got {width}.")
        return width // features
    return options.whole("n_levels", 16, high=MOST_LEVELS)

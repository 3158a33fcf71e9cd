"""Grids of trainable features: hashed, dense or tiled, over 2, 3 or 4 dimensions.

Symbols, for level l of L, with D dimensions:

    scale = base * growth^l - 1     res = ceil(scale) + 1 vertices a side     a point x in 0..1 lies at x * scale + 0.5

    entries   Dense   res^D rounded up to 8
              Tiled   the same, at most base^D
              Hash    the same, at most 2^log2_hashmap_size

A vertex (i_0, i_1, ...) has the row i_0 + i_1 res + i_2 res^2 + ... of its level, taken over as many dimensions as it
takes to fill the entries, and then modulo their number. A Hash level with res^D > entries has the row
(i_0 p_0) xor (i_1 p_1) xor ... modulo entries instead, with primes p and products modulo 2^32.
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
    """Which row of the table belongs to which vertex."""

    dims: int
    kind: str
    levels: int
    features: int
    log2_entries: int
    base: int
    growth: float

    @cached_property
    def scales(self) -> list[float]:
        return [grown_scale(level, self.growth, self.base) for level in range(self.levels)]

    @cached_property
    def resolutions(self) -> list[int]:
        return [math.ceil(scale) + 1 for scale in self.scales]

    @cached_property
    def entries(self) -> list[int]:
        most = {"Hash": 1 << self.log2_entries, "Tiled": self.base**self.dims}.get(self.kind, MOST_ROWS)
        return [min(next_multiple(res**self.dims, 8), most) for res in self.resolutions]

    @cached_property
    def spec(self) -> GrownSpec | None:
        """The same layout for the op `hash_grid`, where it has it: three dimensions, hashed or dense."""
        log2_entries = self.log2_entries if self.kind == "Hash" else 24
        fits = self.dims == 3 and self.kind != "Tiled" and self.levels <= 32 and 4 <= log2_entries <= 24
        if not fits or self.base < 2 or self.growth < 1 or max(self.resolutions) >= 1 << 20:
            return None
        spec = GrownSpec(self.levels, self.features, log2_entries, self.base, growth=self.growth)
        return spec if spec.entries.tolist() == self.entries else None

    def rows(self, cell: Tensor, level: int, corners: int) -> Tensor:
        """[n, D] int64 vertices -> [n, corners] rows of the level; bit d of a corner adds 1 to dimension d."""
        entries, res = self.entries[level], self.resolutions[level]
        hashed = self.kind == "Hash" and res**self.dims > entries
        found, stride = torch.zeros_like(cell[:, :1]), 1
        for dim in range(self.dims):
            if not hashed and stride > entries:
                # Further dimensions do not enter, but their corners are there.
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
    """[n, D] in 0..1, [rows, F] -> [n, L * F] in plain torch; differentiable in both, any number of times."""
    levels = []
    # Split at once: of slices one by one, each would have a gradient of the size of the whole table.
    for level, part in enumerate(table.split(layout.entries)):
        at = x * layout.scales[level] + 0.5
        cell = at.detach().floor()
        if interpolation == "Nearest":
            # A constant almost everywhere, but with a gradient, which is 0.
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
    """A grid by its dictionary. Its parameters are the table [rows, F], row by row, coarsest level first."""

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
            # In float32 where a network follows, so that no gradient is in half precision in between.
            wide = half and loss_scale is not None
            return encode(x, table, spec, precision="fp16" if half else "fp32", kind=torch.float32 if wide else None)
        # No row belongs to NaN: such a point reads some row and gives NaN. Infinity is clamped as what it is.
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
    """The table as read in half precision, in its own type; gradients pass by the rounding."""
    return table + (table.half().to(table.dtype) - table).detach()


def _levels(options: Options, features: int) -> int:
    """The number of levels, from `n_levels` or from the width of the encoding."""
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

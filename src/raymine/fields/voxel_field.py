"""A sparse grid of voxels without a network, as in Plenoxels: density and spherical harmonics of colour at vertices.

Rows of two tables hold the vertices that exist. `vertices` says which vertex a row belongs to, and `index`, which is
derived from it, the row of every vertex of the grid. Pruning and a finer grid rewrite rows and index in place: tables
keep their shapes, so checkpoints, moments of the optimiser and CUDA graphs stay valid.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raymine.contracts import Bounds, Draws, FieldInput, FieldOutput, Group, Memory, Scalars
from raymine.errors import ConfigError, require_finite
from raymine.kernels.activations import NGP
from raymine.kernels.harmonics.op import harmonics
from raymine.kernels.ngp_step.op import Box, to_unit_cube
from raymine.kernels.threads import total
from raymine.kernels.voxels.op import interpolate

_log = logging.getLogger(__name__)

EMPTY = -10.0
"""Density pre-activation of vertices that do not exist: a density of 2e-5 for each unit of length."""
_PIECE = 1 << 20
"""Vertices that are interpolated at once where the grid is refined."""


@dataclass(frozen=True)
class VoxelFieldConfig:
    """The shape of a grid of voxels, and when it changes.

    resolutions: vertices along a side, one number for each stage, ascending. grow_at: the steps before which the grid
        goes to the next resolution. prune_at: further steps before which vertices that nothing needs are removed.
    rows: the most vertices that can exist; at least those of the first, full grid.
    degree: of the spherical harmonics, 0 .. 3: (degree + 1)^2 coefficients for each channel.
    start: initial density pre-activation. threshold: a vertex is needed if it, or one of its neighbours, makes a length
        of one voxel more opaque than this.
    colour_rate: factor on the learning rate of the coefficients. density_variation: weight of density in the total
        variation, where that of colour is 1. variation_rows: rows that it looks at in a step.
    """

    resolutions: tuple[int, ...] = (128, 256, 512)
    grow_at: tuple[int, ...] = (1000, 3000)
    prune_at: tuple[int, ...] = ()
    rows: int = 1 << 22
    degree: int = 2
    start: float = -2.0
    threshold: float = 0.01
    colour_rate: float = 1.0
    density_variation: float = 0.01
    variation_rows: int = 1 << 14

    def __post_init__(self) -> None:
        require_finite(self)
        sides, steps = self.resolutions, self.grow_at
        if not sides or not all(2 <= side <= 1024 for side in sides) or list(sides) != sorted(set(sides)):
            raise ConfigError(f"`resolutions` must be ascending numbers in 2 .. 1024, got {sides}.")
        if len(steps) != len(sides) - 1 or list(steps) != sorted(set(steps)) or any(step < 1 for step in steps):
            raise ConfigError(
                f"`grow_at` must be {len(sides) - 1} ascending steps from 1 on, one for each further resolution, got "
                f"{steps}."
            )
        if any(step < 1 for step in self.prune_at):
            raise ConfigError(f"`prune_at` must be steps from 1 on, got {self.prune_at}.")
        if not sides[0] ** 3 <= self.rows <= 1 << 28:
            raise ConfigError(
                f"`rows` must be at least {sides[0] ** 3}, the vertices of the first grid, and at most 2^28, got "
                f"{self.rows}."
            )
        if not (0 <= self.degree <= 3 and 0 < self.threshold < 1 and self.colour_rate > 0):
            raise ConfigError(
                "a grid of voxels needs `degree` in 0 .. 3, 0 < `threshold` < 1 and `colour_rate` > 0; got "
                f"{self.degree}, {self.threshold} and {self.colour_rate}."
            )
        if self.density_variation < 0 or self.variation_rows < 1:
            raise ConfigError(
                "a grid of voxels needs `density_variation` >= 0 and `variation_rows` >= 1; got "
                f"{self.density_variation} and {self.variation_rows}."
            )

    @property
    def columns(self) -> int:
        """Coefficients of colour of a vertex."""
        return 3 * (self.degree + 1) ** 2

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> VoxelField:
        """See `contracts.FieldConfig`. The initial grid is even, so the seed is not used."""
        return VoxelField(self, bounds, device)

    def memory(self, bounds: Bounds) -> Memory:
        """Fixed: rows four times (values, gradient, two moments), the index, and what refining needs beside them."""
        numbers = 4 * self.rows * (1 + self.columns) + 2 * self.rows + 2 * self.resolutions[-1] ** 3
        return Memory(4 * numbers, 4 * (4 * self.columns + 64))


class VoxelField(nn.Module):
    """Pre-activations of density and view-dependent colour (see `contracts.Field`, `PreparesField`, `HasVariation`)."""

    activations = NGP

    low: Tensor
    high: Tensor
    vertices: Tensor
    index: Tensor
    side: Tensor

    def __init__(self, config: VoxelFieldConfig, bounds: Bounds, device: torch.device | str = "cpu") -> None:
        super().__init__()
        if bounds.unbounded:
            raise ConfigError(
                "voxels needs a box around the scene, and this scene is unbounded.",
                hint="Use the recipe `unbounded`, `proposal` or `planes`, which contract space.",
            )
        self.config = config
        self.resolution = config.resolutions[0]
        self.register_buffer("low", torch.tensor(bounds.low, device=device), persistent=False)
        self.register_buffer("high", torch.tensor(bounds.high, device=device), persistent=False)
        size = sum(b - a for a, b in zip(bounds.low, bounds.high, strict=True)) / 3
        self._size = size
        rows, full = config.rows, self.resolution**3
        self.densities = nn.Parameter(torch.full((rows, 1), config.start, device=device))
        self.colours = nn.Parameter(torch.zeros(rows, config.columns, device=device))
        vertices = torch.full((rows,), -1, dtype=torch.int32, device=device)
        vertices[:full] = torch.arange(full, dtype=torch.int32, device=device)
        self.register_buffer("vertices", vertices)
        room = torch.full((config.resolutions[-1] ** 3,), -1, dtype=torch.int32, device=device)
        self.register_buffer("index", room, persistent=False)
        self.register_buffer("side", torch.zeros(1, dtype=torch.int32, device=device), persistent=False)
        self._find_rows()

    def groups(self) -> list[Group]:
        """Two groups, density and colour; a step touches few rows of either."""
        return [
            Group("density", {"densities": self.densities}, decay=0.0, sparse=True),
            Group("colour", {"colours": self.colours}, rate=self.config.colour_rate, decay=0.0, sparse=True),
        ]

    def scalars(self) -> Scalars:
        return {"resolution": self.resolution}

    def restored(self, scalars: Scalars) -> None:
        self.resolution = int(scalars["resolution"])
        self._find_rows()

    @torch.no_grad()
    def _find_rows(self) -> None:
        """Derive `index` and `side` from `vertices` and the resolution, in place."""
        self.side.fill_(self.resolution)
        self.index.fill_(-1)
        used = (self.vertices >= 0).nonzero()[:, 0]
        self.index[self.vertices[used].long()] = used.int()

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        """World positions [n, 3] -> density pre-activation [n]. The field is static: `time` is ignored."""
        return interpolate(self._unit(positions), self.index, self.side, self.densities, EMPTY)[:, 0]

    def forward(self, query: FieldInput) -> FieldOutput:
        """[n] points with directions -> pre-activations."""
        unit = self._unit(query.positions)
        density = interpolate(unit, self.index, self.side, self.densities, EMPTY)[:, 0]
        found = interpolate(unit, self.index, self.side, self.colours)
        basis = harmonics(query.directions, self.config.degree + 1)
        coefficients = found.view(len(found), 3, self.config.columns // 3)
        return FieldOutput((coefficients * basis[:, None].to(found.dtype)).sum(-1), density)

    def _unit(self, positions: Tensor) -> Tensor:
        return to_unit_cube(positions, Box(self.low, self.high, False))

    def variation(self, step: int | Tensor) -> Tensor:
        """See `contracts.HasVariation`: between vertices and the next ones on each axis, of some rows in each step."""
        count = min(self.config.variation_rows, self.config.rows)
        stride = self.config.rows // count
        rows = torch.arange(count, device=self.index.device) * stride + (step * 7919) % stride
        side, vertex = self.side[0].long(), self.vertices[rows].long()
        places = vertex // (side * side), vertex // side % side, vertex % side
        listed, both = [rows], []
        for place, jump in zip(places, (side * side, side, torch.ones_like(side)), strict=True):
            inside = (vertex >= 0) & (place < side - 1)
            after = self.index[torch.where(inside, vertex + jump, 0)].long()
            both.append((inside & (after >= 0)).float())
            listed.append(after.clamp_min(0))
        # One look-up for each table: the gradient of each is as large as the table.
        densities, colours = (_rows_of(table, torch.cat(listed)).unflatten(0, (4, -1)) for table in self._tables)
        density, colour = (found[1:] - found[:1] for found in (densities, colours))
        each = self.config.density_variation * density.square()[..., 0] + colour.square().mean(-1)
        pairs = torch.stack(both)
        return total(each * pairs) / total(pairs).clamp_min(1.0)

    @property
    def _tables(self) -> tuple[nn.Parameter, nn.Parameter]:
        return self.densities, self.colours

    def before_step(self, draws: Draws) -> dict[str, Tensor] | None:
        """See `contracts.PreparesField`: at some steps vertices are removed, and the grid becomes finer."""
        config, step = self.config, draws.step
        if step in config.grow_at:
            side = config.resolutions[1 + config.grow_at.index(step)]
            # A step that is repeated, as after a restart from an earlier state, must not grow the grid twice.
            source = self._grow(side) if side > self.resolution else None
        else:
            source = self._prune() if step in config.prune_at else None
        return None if source is None else {"densities": source, "colours": source}

    @torch.no_grad()
    def _needed(self) -> Tensor:
        """[S, S, S] bool: vertices that make a length of one voxel more opaque than the threshold; all if none does.

        Early in training none may, and a field without vertices could not learn any more.
        """
        voxel = self._size / (self.resolution - 1)
        limit = -math.log1p(-self.config.threshold) / voxel
        used = self.vertices >= 0
        dense = (self.activations.density(self.densities[:, 0]) > limit) & used
        dense = torch.where(dense.any(), dense, used)
        found = torch.zeros(self.resolution**3, dtype=torch.bool, device=self.index.device)
        found[self.vertices[dense].long()] = True
        return found.view(self.resolution, self.resolution, self.resolution)

    @torch.no_grad()
    def _prune(self) -> Tensor:
        """Keep the rows of needed vertices and of their neighbours. Returns the former row [rows] of each, or -1."""
        near = self._needed()
        for axis in range(3):
            near = _with_neighbours(near, axis)
        wanted = near.view(-1)[self.vertices.clamp_min(0).long()] & (self.vertices >= 0)
        source = torch.full_like(self.vertices, -1, dtype=torch.int64)
        kept = wanted.nonzero()[:, 0]
        source[: len(kept)] = kept
        values = self.densities[kept], self.colours[kept]
        self._write(self.vertices[kept], *values)
        return source

    @torch.no_grad()
    def _grow(self, side: int) -> Tensor:
        """Refine to `side` vertices a side, in cells that have a needed corner. Returns the nearest former rows [rows].

        New rows are interpolated. If there is no room for all of them, the densest are kept.
        """
        old, device = self.resolution, self.index.device
        at = torch.arange(side, device=device, dtype=torch.float64) * ((old - 1) / (side - 1))
        low = at.floor().long().clamp(max=old - 2)
        wanted = self._needed()
        for axis in range(3):
            wanted = wanted.index_select(axis, low) | wanted.index_select(axis, low + 1)
        places = wanted.view(-1).nonzero()[:, 0]
        if len(places) > self.config.rows:
            _log.warning(
                "A grid of %d^3 needs %d rows, and there are %d: the densest are kept.", side, len(places),
                self.config.rows,
            )  # fmt: skip
            density = self._at(places, side, self.densities, EMPTY)[:, 0]
            places = places[density.argsort(descending=True, stable=True)[: self.config.rows]].sort().values
        values = self._at(places, side, self.densities, EMPTY), self._at(places, side, self.colours, 0.0)
        nearest = at.round().long()
        x, y, z = places // (side * side), places // side % side, places % side
        source = torch.full_like(self.vertices, -1, dtype=torch.int64)
        source[: len(places)] = self.index[(nearest[x] * old + nearest[y]) * old + nearest[z]].long()
        self.resolution = side
        self._write(places.int(), *values)
        return source

    def _at(self, places: Tensor, side: int, table: Tensor, missing: float) -> Tensor:
        """Values [n, C] of the present grid at vertices [n] of one with `side` vertices a side."""
        found = []
        for part in places.split(_PIECE):
            unit = torch.stack((part // (side * side), part // side % side, part % side), -1).float() / (side - 1)
            found.append(interpolate(unit, self.index, self.side, table.detach(), missing))
        return torch.cat(found) if found else table.new_empty(0, table.shape[1])

    def _write(self, vertices: Tensor, densities: Tensor, colours: Tensor) -> None:
        """Rows for these vertices, from the first row on; the other rows become unused."""
        used = len(vertices)
        for table, values, rest in (
            (self.vertices, vertices, -1),
            (self.densities.data, densities, self.config.start),
            (self.colours.data, colours, 0.0),
        ):
            table[:used] = values
            table[used:] = rest
        self._find_rows()


def _with_neighbours(volume: Tensor, axis: int) -> Tensor:
    """A bool volume in which the neighbours of true elements along an axis are true as well."""
    size = volume.shape[axis]
    found = volume.clone()
    found.narrow(axis, 1, size - 1).logical_or_(volume.narrow(axis, 0, size - 1))
    found.narrow(axis, 0, size - 1).logical_or_(volume.narrow(axis, 1, size - 1))
    return found


def _rows_of(table: nn.Parameter, rows: Tensor) -> Tensor:
    """Rows of a table. On a CPU its gradient is sparse, as that of the interpolation is there."""
    if table.device.type == "cpu":
        return nn.functional.embedding(rows, table, sparse=True)
    return table.index_select(0, rows)

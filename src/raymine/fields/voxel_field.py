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
_AGAIN = 16
"""Steps between two attempts to refine a grid for which there was no room."""


@dataclass(frozen=True)
class VoxelFieldConfig:
    """The shape of a grid of voxels, and when it changes.

    resolutions: vertices along a side, one number for each stage, ascending. grow_at: when the grid goes to the next
        resolution: steps (from 1 on), or shares of the run (below 1). prune_at: further steps before which vertices
        that nothing needs are removed.
    rows: the most vertices that can exist; at least those of the first, full grid. A grid that would need more becomes
        only as fine as they allow, and finer once less is needed.
    degree: of the spherical harmonics, 0 .. 3: (degree + 1)^2 coefficients for each channel.
    start: initial density pre-activation. threshold: a vertex is needed if it, or one of its neighbours, makes a length
        of one voxel more opaque than this.
    colour_rate: factor on the learning rate of the coefficients. density_variation: weight of density in the total
        variation, where that of colour is 1. variation_rows: rows that it looks at in a step.
    """

    resolutions: tuple[int, ...] = (128, 256, 512)
    grow_at: tuple[int | float, ...] = (1000, 3000)
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
        in_steps = all(step >= 1 and step == int(step) for step in steps)
        if (
            len(steps) != len(sides) - 1
            or list(steps) != sorted(set(steps))
            or not (in_steps or all(0 < step < 1 for step in steps))
        ):
            raise ConfigError(
                f"`grow_at` must be {len(sides) - 1} ascending steps from 1 on, or as many shares of the run between 0 "
                f"and 1, one for each further resolution; got {steps}."
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

    def moments(self, horizon: int) -> tuple[int, ...]:
        """The steps of `grow_at` in a run of `horizon` steps. () if they are shares and the horizon is 0, not known."""
        if any(at < 1 for at in self.grow_at):
            return tuple(max(1, math.ceil(at * horizon)) for at in self.grow_at) if horizon else ()
        return tuple(int(at) for at in self.grow_at)

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
        self._warned_of_length = self._warned_of_rows = False
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
        side, finest = int(scalars["resolution"]), self.config.resolutions[-1]
        if not 2 <= side <= finest:
            raise ConfigError(f"a grid of {side}^3 vertices is finer than `resolutions` allow, {finest}^3.")
        self.resolution = side
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
        moments = config.moments(draws.horizon)
        self._warn_of_short_run(draws, moments)
        side = config.resolutions[sum(moment <= step for moment in moments)]
        source = None
        # A step that is repeated, as after a restart from an earlier state, must not grow the grid twice. The moment of
        # a time-limited run may pass unseen, where the horizon is estimated anew.
        if side > self.resolution and (step in moments or step % _AGAIN == 0):
            source = self._grow(side)
        elif step in config.prune_at:
            source = self._prune()
        return None if source is None else {"densities": source, "colours": source}

    def _warn_of_short_run(self, draws: Draws, moments: tuple[int, ...]) -> None:
        """Say once if the run ends before the grid is finest. Early estimates of a horizon are not trusted."""
        trusted = draws.step == 0 or 2 * draws.step >= draws.horizon
        if trusted and not self._warned_of_length and 0 < draws.horizon <= max(moments, default=0):
            self._warned_of_length = True
            _log.warning(
                "The grid becomes finest, %d^3, at step %d, and this run has about %d: it stays coarser.",
                self.config.resolutions[-1], max(moments), draws.horizon,
            )  # fmt: skip

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
    def _grow(self, side: int) -> Tensor | None:
        """Refine to `side` vertices a side, in cells that have a needed corner. Returns the nearest former rows [rows].

        If there is no room for all of these vertices, the grid becomes as fine as there is room for, since a surface
        with missing vertices has holes that cannot be closed again. None if that is no finer than it is.
        """
        needed, old = self._needed(), self.resolution
        places = self._refined(needed, side)
        if len(places) > self.config.rows:
            asked, fits = (side, len(places)), old
            while side - fits > 1:
                middle = (fits + side) // 2
                places = self._refined(needed, middle)
                fits, side = (middle, side) if len(places) <= self.config.rows else (fits, middle)
            self._warn_of_rows(*asked, fits)
            if fits == old:
                return None
            side, places = fits, self._refined(needed, fits)
        at = _coarser(side, old, self.index.device)
        values = self._at(places, side, self.densities, EMPTY), self._at(places, side, self.colours, 0.0)
        nearest = at.round().long()
        x, y, z = places // (side * side), places // side % side, places % side
        source = torch.full_like(self.vertices, -1, dtype=torch.int64)
        source[: len(places)] = self.index[(nearest[x] * old + nearest[y]) * old + nearest[z]].long()
        self.resolution = side
        self._write(places.int(), *values)
        return source

    def _warn_of_rows(self, side: int, needed: int, fits: int) -> None:
        if not self._warned_of_rows:
            self._warned_of_rows = True
            _log.warning(
                "A grid of %d^3 needs %d rows, and there are %d: it is %d^3 until fewer are needed.", side, needed,
                self.config.rows, fits,
            )  # fmt: skip

    def _refined(self, needed: Tensor, side: int) -> Tensor:
        """Vertices [n] of a grid of `side` vertices a side that lie in cells with a needed corner."""
        low = _coarser(side, self.resolution, needed.device).floor().long().clamp(max=self.resolution - 2)
        for axis in range(3):
            needed = needed.index_select(axis, low) | needed.index_select(axis, low + 1)
        return needed.view(-1).nonzero()[:, 0]

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


def _coarser(side: int, old: int, device: torch.device) -> Tensor:
    """Places [side] of vertices along an axis of `side` vertices, in voxels of one of `old` vertices."""
    return torch.arange(side, device=device, dtype=torch.float64) * ((old - 1) / (side - 1))


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

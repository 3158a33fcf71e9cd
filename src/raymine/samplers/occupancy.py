"""The occupancy sampler: a grid that remembers where density is, so that rays skip what is empty.

Every `every` steps some cells are visited: value = max(decay * value, opacity of one step at a random point in it).
A cell is occupied while its value exceeds min(threshold, mean value of the visited part of its level).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from raymine.contracts import (
    Bounds,
    Draws,
    Field,
    Group,
    Memory,
    Rays,
    Rounds,
    Scalars,
    activations_of,
)
from raymine.errors import ConfigError
from raymine.kernels.march.op import Occupancy, Spacing, march, pack_bits
from raymine.kernels.philox.op import Stream, uniform, words
from raymine.toolkit.occupancy_update import Visit, above_limit, grid_coordinates, update_values

DensityAtPoints = Callable[[Tensor], Tensor]
"""[n, 3] world positions -> [n] density after activation."""


@dataclass(frozen=True)
class OccupancyConfig:
    """Grid and stepping. Lengths are in world units; `cells` bounds the cells visited by one partial update.

    decay: what a cell keeps of its value at a visit. settle: after this many steps a visit forgets less and less, in
    proportion to settle / step, so that thin parts which visits seldom meet stay; 0: it always forgets alike.
    """

    resolution: int = 128
    step: float = 5e-3
    cone: float = 0.0
    decay: float = 0.95
    threshold: float = 1e-2
    every: int = 16
    full_steps: int = 256
    cells: int = 1 << 17
    settle: int = 0

    def __post_init__(self) -> None:
        if self.resolution % 8 or not 8 <= self.resolution <= 512:
            raise ConfigError(f"`resolution` must be a multiple of 8 in 8 .. 512, got {self.resolution}.")
        if not (self.step > 0 and 0 <= self.cone < 1 and 0 < self.decay <= 1 and self.threshold > 0):
            raise ConfigError(
                "the occupancy grid needs step > 0, 0 <= cone < 1, 0 < decay <= 1 and threshold > 0; "
                f"got {self.step}, {self.cone}, {self.decay} and {self.threshold}."
            )
        if self.every < 1 or self.full_steps < 0 or self.cells < 1 or self.settle < 0:
            raise ConfigError(
                "the occupancy schedule needs every >= 1, full_steps >= 0, cells >= 1 and settle >= 0; "
                f"got {self.every}, {self.full_steps}, {self.cells} and {self.settle}."
            )

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> OccupancySampler:
        """See `contracts.SamplerConfig`. Nothing here is drawn, so the seed does not matter."""
        return OccupancySampler(self, bounds, device)

    def memory(self, bounds: Bounds) -> Memory:
        """Values as float, and the occupancy of each cell once more while an update visits it."""
        return Memory(bounds.levels * self.resolution**3 * 8)

    def decay_at(self, step: int) -> float:
        """What a cell keeps of its value at a visit before training step `step`."""
        if self.settle == 0 or step <= self.settle:
            return self.decay
        return 1 - (1 - self.decay) * self.settle / step


class OccupancySampler:
    """Marches rays through the occupied cells (`contracts.Sampler`, `PreparesStep`, `Part`).

    `values` [G, res^3] and whether a first sweep has set them (`swept`) are all there is to save. `grid` follows from
    them: whoever changes values otherwise than by `update` calls `changed`.
    """

    def __init__(self, config: OccupancyConfig, bounds: Bounds, device: torch.device) -> None:
        self.config = config
        self.bounds = bounds
        self.spacing = Spacing(config.step, cone=config.cone)
        res = config.resolution
        self.values = torch.zeros(bounds.levels, res**3, device=device)
        self.swept = False
        self._grid: Occupancy | None = None

    @property
    def grid(self) -> Occupancy:
        """The occupied cells, derived from `values` when they have changed since the last call."""
        if self._grid is None:
            res = self.config.resolution
            if not self.swept:
                occupied = torch.ones_like(self.values, dtype=torch.bool)
            else:
                occupied = self._above_limit(self.values)
            self._grid = pack_bits(occupied.reshape(-1, res, res, res), self.bounds.low, self.bounds.high)
        return self._grid

    def changed(self) -> None:
        """To be called after `values` or `swept` were changed from outside."""
        self._grid = None

    def sample(self, rays: Rays, field: Field | None = None, draws: Draws | None = None) -> Rounds:
        """Packed intervals in occupied cells, shifted by a random share of a step where there are `draws`."""
        jitter = None if draws is None else draws.uniform(Stream.JITTER, (len(rays),))
        return Rounds(march(rays.origins, rays.directions, rays.near, rays.far, self.grid, self.spacing, jitter))

    def before_step(self, field: Field, draws: Draws, times: Tensor | None) -> None:
        """Update the grid with the field as it is now, where an update is due. Cells are visited at random times."""
        if not self.due(draws.step):
            return
        activate, visited = activations_of(field).density, 0

        def density(points: Tensor) -> Tensor:
            nonlocal visited
            if times is None:
                return activate(field.density(points))
            drawn = draws.uniform(Stream.OCCUPANCY_TIME, (len(points),), first=visited)
            visited += len(points)
            return activate(field.density(points, times[(drawn * len(times)).long()]))

        with torch.no_grad():
            self.update(density, draws.seed, draws.step)

    def groups(self) -> list[Group]:
        return []

    def tensors(self) -> dict[str, Tensor]:
        return {"values": self.values}

    def scalars(self) -> Scalars:
        return {"swept": self.swept}

    def restored(self, scalars: Scalars) -> None:
        self.swept = bool(scalars["swept"])
        self.changed()

    def due(self, step: int) -> bool:
        """Whether the grid is updated before training step `step`."""
        return step % self.config.every == 0 and step > 0

    def update(self, density: DensityAtPoints, seed: int, step: int) -> None:
        """One update: every cell while young (the first sweep overwrites), a sample of cells afterwards."""
        young = not self.swept or step < self.config.full_steps
        levels = range(self.bounds.levels)
        visits = (self._visit(level, young, seed, step * len(levels) + level) for level in levels)
        # Before the first sweep there is nothing to remember: decaying from a guess would cull nothing for long.
        decay = self.config.decay_at(step) if self.swept else 0.0

        def opacity(points: Tensor) -> Tensor:
            # The shortest step on every level: a longer one would call empty space far away occupied for ever.
            return torch.cat([-torch.expm1(-density(part) * self.config.step) for part in points.split(1 << 16)])

        update_values(self.values, visits, opacity, decay, skip_nan=False)
        self.swept = True
        self.changed()

    def _some_cells(self, level: int, seed: int, draw: int) -> Tensor:
        """Half spread over all cells, half over the occupied ones: every k-th of them, starting at a random offset."""
        n, half = self.values.shape[1], max(1, min(self.config.cells, self.values.shape[1]) // 2)
        device = self.values.device
        start = words(seed, draw, Stream.OCCUPANCY_CELL, 2, device)
        place = torch.arange(half, device=device)
        anywhere = (place * n + ((start[0] * n) >> 32)) // half % n
        occupied = self._above_limit(self.values[level]).nonzero()[:, 0]
        if len(occupied) > half:
            occupied = occupied[(place * len(occupied) + ((start[1] * len(occupied)) >> 32)) // half]
        return torch.cat((anywhere, occupied))

    def _above_limit(self, values: Tensor) -> Tensor:
        """[..., res^3] bool: the mean is that of each level, over all of its cells."""
        return above_limit(values, self.config.threshold)

    def _visit(self, level: int, every: bool, seed: int, draw: int) -> Visit:
        """A random point of every cell of a level, or of some."""
        res, device = self.config.resolution, self.values.device
        cells = torch.arange(res**3, device=device) if every else self._some_cells(level, seed, draw)
        offset = uniform(seed, draw, Stream.OCCUPANCY_OFFSET, (len(cells), 3), device)
        low, high = (torch.tensor(side, device=device) for side in (self.bounds.low, self.bounds.high))
        unit = (grid_coordinates(cells, (res, res, res)) + offset) * (2.0 / res) - 1.0
        return Visit(cells, (low + high) * 0.5 + unit * (high - low) * (0.5 * 2**level))

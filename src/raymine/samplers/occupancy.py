"""The occupancy sampler: a grid that records where there is density, so that rays skip empty space.

Every `every` steps some cells are updated: value = max(decay * value, opacity of one step at a random point of the
cell). A cell is occupied while its value exceeds min(threshold, mean value of its level).
"""

from __future__ import annotations

import math
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
from raymine.errors import ConfigError, require_finite
from raymine.kernels.march.op import Occupancy, Spacing, march, pack_bits
from raymine.kernels.philox.op import Stream, uniform, words
from raymine.toolkit.occupancy_update import Visit, above_limit, grid_coordinates, update_values

DensityAtPoints = Callable[[Tensor], Tensor]
"""World positions [n, 3] -> density [n] after activation."""


@dataclass(frozen=True)
class OccupancyConfig:
    """The occupancy grid and the step length. Lengths are in world units.

    resolution: cells per side of each level. step: length of a step. cone: growth of the step length per unit distance.
    decay: the factor on a cell's value at an update. threshold: the opacity of one step above which a cell is occupied.
    every: training steps between two updates. start: training steps before the first update, in which every cell counts
        as occupied; a surface that has not formed yet is left out else, and no sample brings it back. full_steps: for
        so many steps after `start` an update visits every cell.
    cells: the most cells per level that a partial update visits.
    settle: after this many steps 1 - decay shrinks in proportion to settle / step. Thin structures, which random points
        rarely hit, then stay occupied. 0: the decay is constant.
    """

    resolution: int = 128
    step: float = 5e-3
    cone: float = 0.0
    decay: float = 0.95
    threshold: float = 1e-2
    every: int = 16
    start: int = 0
    full_steps: int = 256
    cells: int = 1 << 17
    settle: int = 0

    def __post_init__(self) -> None:
        require_finite(self)
        if self.resolution % 8 or not 8 <= self.resolution <= 512:
            raise ConfigError(f"`resolution` must be a multiple of 8 in 8 .. 512, got {self.resolution}.")
        if not (self.step > 0 and 0 <= self.cone < 1 and 0 < self.decay <= 1 and self.threshold > 0):
            raise ConfigError(
                "the occupancy grid needs step > 0, 0 <= cone < 1, 0 < decay <= 1 and threshold > 0; "
                f"got {self.step}, {self.cone}, {self.decay} and {self.threshold}."
            )
        if self.every < 1 or self.start < 0 or self.full_steps < 0 or self.cells < 1 or self.settle < 0:
            raise ConfigError(
                "the occupancy schedule needs every >= 1, start >= 0, full_steps >= 0, cells >= 1 and settle >= 0; "
                f"got {self.every}, {self.start}, {self.full_steps}, {self.cells} and {self.settle}."
            )

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> OccupancySampler:
        """See `contracts.SamplerConfig`. The seed is not used."""
        return OccupancySampler(self, bounds, device)

    def memory(self, bounds: Bounds) -> Memory:
        """Fixed: the float value of each cell, and as much again during an update."""
        return Memory(bounds.levels * self.resolution**3 * 8)

    @property
    def first_update(self) -> int:
        """The training step before which the grid is updated first."""
        return self.every * max(1, math.ceil(self.start / self.every))

    def visits_all(self, step: int) -> bool:
        """Whether an update before training step `step` visits every cell, also if it is not the first one."""
        return step < self.start + self.full_steps

    def decay_at(self, step: int) -> float:
        """The decay of an update before training step `step`."""
        if self.settle == 0 or step <= self.settle:
            return self.decay
        return 1 - (1 - self.decay) * self.settle / step


class OccupancySampler:
    """Marches rays through the occupied cells (`contracts.Sampler`, `PreparesStep`, `Part`).

    The saved state is `values` [G, res^3] and `swept`, whether a first update of all cells has set them. `grid` is
    derived from both. Code that changes them other than by `update` must call `changed`.
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
        """The occupied cells; derived from `values` again if they have changed since the last call."""
        if self._grid is None:
            res = self.config.resolution
            if not self.swept:
                occupied = torch.ones_like(self.values, dtype=torch.bool)
            else:
                occupied = self._above_limit(self.values)
            self._grid = pack_bits(occupied.reshape(-1, res, res, res), self.bounds.low, self.bounds.high)
        return self._grid

    def changed(self) -> None:
        """Call this after changing `values` or `swept` from outside."""
        self._grid = None

    def sample(self, rays: Rays, field: Field | None = None, draws: Draws | None = None) -> Rounds:
        """Packed intervals of rays [R] in occupied cells. Not differentiable.

        With `draws` the intervals of each ray are shifted by a random share of a step.
        """
        jitter = None if draws is None else draws.of_rays(Stream.JITTER, len(rays))[:, 0]
        return Rounds(march(rays.origins, rays.directions, rays.near, rays.far, self.grid, self.spacing, jitter))

    def before_step(self, field: Field, draws: Draws, times: Tensor | None) -> None:
        """Update the grid from the field, if an update is due. A dynamic field is queried at random training times."""
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
        return step % self.config.every == 0 and step >= self.config.first_update

    def update(self, density: DensityAtPoints, seed: int, step: int) -> None:
        """Update the grid: all cells at first, some cells later (`visits_all`). The first update overwrites."""
        young = not self.swept or self.config.visits_all(step)
        levels = range(self.bounds.levels)
        visits = (self._visit(level, young, seed, step * len(levels) + level) for level in levels)
        # Before the first sweep the values mean nothing. Decaying from a guess would keep empty cells for long.
        decay = self.config.decay_at(step) if self.swept else 0.0

        def opacity(points: Tensor) -> Tensor:
            # The shortest step on every level. With a longer one, distant empty space would stay occupied for ever.
            return torch.cat([-torch.expm1(-density(part) * self.config.step) for part in points.split(1 << 16)])

        update_values(self.values, visits, opacity, decay, skip_nan=False)
        self.swept = True
        self.changed()

    def _some_cells(self, level: int, seed: int, draw: int) -> Tensor:
        """Cells for a partial update: half from all cells, half from the occupied ones.

        Each half takes every k-th cell, starting at a random offset.
        """
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
        """[..., res^3] bool: whether each cell is occupied. The mean is over all cells of a level."""
        return above_limit(values, self.config.threshold)

    def _visit(self, level: int, every: bool, seed: int, draw: int) -> Visit:
        """A random point in every cell of a level, or in some cells."""
        res, device = self.config.resolution, self.values.device
        cells = torch.arange(res**3, device=device) if every else self._some_cells(level, seed, draw)
        offset = uniform(seed, draw, Stream.OCCUPANCY_OFFSET, (len(cells), 3), device)
        low, high = (torch.tensor(side, device=device) for side in (self.bounds.low, self.bounds.high))
        unit = (grid_coordinates(cells, (res, res, res)) + offset) * (2.0 / res) - 1.0
        return Visit(cells, (low + high) * 0.5 + unit * (high - low) * (0.5 * 2**level))

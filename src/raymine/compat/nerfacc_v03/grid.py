"""`nerfacc.grid`: occupancy grids that skip empty space."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from raymine.compat.nerfacc_v03._arguments import floating, returned
from raymine.compat.nerfacc_v03.contraction import ContractionType, contract, contract_inv
from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.toolkit.occupancy_update import Visit, above_limit, grid_coordinates, update_values

OccFn = Callable[[Tensor], Tensor]
"""World positions (N, 3) -> occupancies (N, 1)."""


@torch.no_grad()
def query_grid(samples: Tensor, grid_roi: Tensor, grid_values: Tensor, grid_type: ContractionType) -> Tensor:
    """Values (n_samples,) of grid_values (X, Y, Z) in the cells of samples (n_samples, 3). Not differentiable.

    grid_roi: (6,), the region of interest. A sample that the grid does not cover (AABB) or that is NaN gets 0.
    """
    n = samples.shape[0] if isinstance(samples, Tensor) and samples.ndim else 0
    floating("samples", samples, (n, 3), samples)
    floating("grid_roi", grid_roi, (6,), samples)
    if grid_values.ndim != 3 or not grid_values.numel():
        raise ConfigError(f"`grid_values` must have shape [X, Y, Z], with cells, got {list(grid_values.shape)}.")
    checks.shapes((("grid_values", grid_values, grid_values.shape),), samples.device)
    if not isinstance(grid_type, ContractionType):
        raise ConfigError(f"`grid_type` must be a member of `ContractionType`, got {grid_type!r}.")
    roi = grid_roi.to(samples.dtype)
    covered = ~samples.isnan().any(-1)
    if grid_type is ContractionType.AABB:
        covered &= ((samples >= roi[:3]) & (samples <= roi[3:])).all(-1)
    unit = contract(samples, roi, grid_type).masked_fill(~covered[:, None], 0.0)
    at = [(unit[:, axis] * side).long().clamp(0, side - 1) for axis, side in enumerate(grid_values.shape)]
    found = grid_values[at[0], at[1], at[2]]
    return torch.where(covered, found, torch.zeros_like(found))


class Grid(torch.nn.Module):
    """Base class of grids for `ray_marching`. A subclass sets `_roi_aabb`, `_binary` and `_contraction_type`."""

    _dummy: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.register_buffer("_dummy", torch.empty(0), persistent=False)

    @property
    def device(self) -> torch.device:
        return self._dummy.device

    @property
    def roi_aabb(self) -> Tensor:
        """The region of interest (6,): low x, y, z, high x, y, z."""
        found: Tensor = self._set("_roi_aabb")
        return found

    @property
    def binary(self) -> Tensor:
        """Occupied cells (X, Y, Z) bool."""
        found: Tensor = self._set("_binary")
        return found

    @property
    def contraction_type(self) -> ContractionType:
        """How the grid covers space."""
        found: ContractionType = self._set("_contraction_type")
        return found

    def _set(self, name: str) -> Any:
        if not hasattr(self, name):
            raise NotImplementedError(f"a subclass of `Grid` must set the attribute `{name}`.")
        return getattr(self, name)


class OccupancyGrid(Grid):
    """Remembers where a field is dense, in a grid of cells over a region, or over all of space.

    roi_aabb: {min x, y, z, max x, y, z} of the region in world units. resolution: cells per side, one number or three.
    Buffers: `_roi_aabb` (6,), `_binary` (X, Y, Z), `resolution` (3,), `occs` (cells,); not in the state dict:
    `grid_coords` (cells, 3) and `grid_indices` (cells,). No cell is occupied before the first update.
    """

    NUM_DIM: int = 3
    _KEEPS_COORDINATES = False
    """Whether the state dict has `grid_coords` and `grid_indices`."""

    _roi_aabb: Tensor
    _binary: Tensor
    resolution: Tensor
    occs: Tensor
    grid_coords: Tensor
    grid_indices: Tensor

    def __init__(
        self,
        roi_aabb: Sequence[float] | Tensor,
        resolution: int | Sequence[int] | Tensor = 128,
        contraction_type: ContractionType = ContractionType.AABB,
    ) -> None:
        super().__init__()
        if not isinstance(contraction_type, ContractionType):
            raise ConfigError(f"`contraction_type` must be a member of `ContractionType`, got {contraction_type!r}.")
        sides = [resolution] * self.NUM_DIM if isinstance(resolution, int) else [int(side) for side in resolution]
        if len(sides) != self.NUM_DIM or not all(1 <= side < 2**20 for side in sides):
            raise ConfigError(f"`resolution` must be one or three numbers of 1 or more, got {sides}.")
        box = torch.as_tensor(roi_aabb, dtype=torch.float32).detach().clone()
        if box.shape != (2 * self.NUM_DIM,):
            raise ConfigError(f"`roi_aabb` must be 6 numbers, got shape {list(box.shape)}.")
        self.num_cells = math.prod(sides)
        self._contraction_type = contraction_type
        self.register_buffer("_roi_aabb", box)
        self.register_buffer("_binary", torch.zeros(sides, dtype=torch.bool))
        self.register_buffer("resolution", torch.tensor(sides, dtype=torch.int32))
        self.register_buffer("occs", torch.zeros(self.num_cells))
        indices = torch.arange(self.num_cells)
        self.register_buffer("grid_coords", grid_coordinates(indices, sides), persistent=self._KEEPS_COORDINATES)
        self.register_buffer("grid_indices", indices, persistent=self._KEEPS_COORDINATES)

    @torch.no_grad()
    def every_n_step(
        self,
        step: int,
        occ_eval_fn: OccFn,
        occ_thre: float = 1e-2,
        ema_decay: float = 0.95,
        warmup_steps: int = 256,
        n: int = 16,
    ) -> None:
        """Every n steps, update cells: value = max(ema_decay * value, occ_eval_fn at a random point of the cell).

        occ_eval_fn: world positions (N, 3) -> occupancies (N, 1). Before `warmup_steps` every cell is updated;
        afterwards a random quarter of the cells and up to as many occupied cells. A cell is occupied if its value
        exceeds min(occ_thre, mean value). Not differentiable.
        """
        if not self.training:
            raise RuntimeError(
                "the occupancy grid is in evaluation mode and stays as it is. Call `train()` first, or `_update` to "
                "change it all the same."
            )
        if n < 1:
            raise ConfigError(f"`n` must be 1 or more, got {n}.")
        if step % n == 0:
            self._update(step, occ_eval_fn, occ_thre, ema_decay, warmup_steps)

    @torch.no_grad()
    def query_occ(self, samples: Tensor) -> Tensor:
        """Whether the cells of samples (n_samples, 3) are occupied, (n_samples,) bool."""
        return query_grid(samples, self._roi_aabb, self.binary, self.contraction_type)

    @torch.no_grad()
    def _get_all_cells(self) -> Tensor:
        return self.grid_indices

    @torch.no_grad()
    def _sample_uniform_and_occupied_cells(self, n: int) -> Tensor:
        """n random cells and at most n occupied cells."""
        anywhere = torch.randint(self.num_cells, (n,), device=self.device)
        dense = self._binary.flatten().nonzero()[:, 0]
        if n < len(dense):
            dense = dense[torch.randint(len(dense), (n,), device=self.device)]
        return torch.cat((anywhere, dense))

    @torch.no_grad()
    def _update(
        self,
        step: int,
        occ_eval_fn: OccFn,
        occ_thre: float = 0.01,
        ema_decay: float = 0.95,
        warmup_steps: int = 256,
    ) -> None:
        every = step < warmup_steps
        cells = self._get_all_cells() if every else self._sample_uniform_and_occupied_cells(self.num_cells // 4)
        at = self.grid_coords[cells]
        unit = (at + torch.rand_like(at, dtype=torch.float32)) / self.resolution
        if self._contraction_type is ContractionType.UN_BOUNDED_SPHERE:
            # Space is mapped to the ball in the cube; the corners belong to no point.
            inside = (torch.linalg.vector_norm(unit - 0.5, dim=1) < 0.5).nonzero()[:, 0]
            unit, cells = unit[inside], cells[inside]
        points = contract_inv(unit, self._roi_aabb, self._contraction_type)

        def occupancy(points: Tensor) -> Tensor:
            found = occ_eval_fn(points)
            if isinstance(found, Tensor):
                # nerfacc also took values without the last axis, and truth values.
                found = found[:, None] if found.ndim == 1 else found
                found = found.to(points.dtype) if found.dtype is torch.bool else found
            return returned("occ_eval_fn", found, (len(points), 1), points)

        update_values(self.occs[None], [Visit(cells, points)], occupancy, ema_decay, skip_nan=True)
        self._binary = above_limit(self.occs, occ_thre).view(self._binary.shape)

"""`nerfacc.grid`: occupancy grids that skip empty space."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.compat.nerfacc_v03 import grid
from raymine.compat.nerfacc_v03.grid import Grid as Grid
from raymine.compat.nerfacc_v03.grid import query_grid as query_grid


class OccupancyGrid(grid.OccupancyGrid):
    """As in 0.3, except that `query_occ` returns values, and that the state dict has the coordinates of cells."""

    _KEEPS_COORDINATES = True

    @torch.no_grad()
    def query_occ(self, samples: Tensor) -> Tensor:
        """Occupancy values (n_samples,) of the cells of samples (n_samples, 3)."""
        return query_grid(samples, self._roi_aabb, self.occs.view(self._binary.shape), self.contraction_type)

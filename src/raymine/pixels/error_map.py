"""The error map: an exponential moving average of the squared errors of the rays in each cell.

One ray with error x changes a cell's mean e to d e + (1 - d) x, where d is the decay; the first ray sets it to x. The k
rays of one step in the same cell have no order, so they count as k rays with their mean error m: d^k e + (1 - d^k) m.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

UNSEEN = -1.0
"""The value of a cell before its first ray."""


class ErrorMap:
    """values [N] float32: the moving averages, UNSEEN before the first ray. This is the whole state."""

    def __init__(self, cells: int, decay: float) -> None:
        self.values = torch.full((cells,), UNSEEN)
        self._values = self.values.numpy()
        self._decay = decay
        # Sums over the rays of one step. They are 0 between calls, so a call touches only the cells of its rays.
        self._sum = np.zeros(cells)
        self._count = np.zeros(cells, np.int64)

    def observe(self, cell: np.ndarray, error: np.ndarray) -> None:
        """Add squared errors [n] float32 of one step, in cells [n] int64. Negative and non-finite ones are ignored."""
        good = (error >= 0) & (error < np.inf)
        if not good.all():
            cell, error = cell[good], error[good]
        np.add.at(self._sum, cell, error.astype(np.float64))
        np.add.at(self._count, cell, 1)
        count, old = self._count[cell], self._values[cell]
        mean = self._sum[cell] / count
        kept = self._decay**count
        # A cell that occurs several times gets the same value each time.
        self._values[cell] = np.where(old < 0, mean, kept * old + (1 - kept) * mean)
        self._sum[cell] = 0
        self._count[cell] = 0

    def filled(self) -> Tensor:
        """[N] float32: an unseen cell gets the largest value of the seen cells; all 1 before the first ray."""
        worst = float(self.values.max())
        return self.values.where(self.values >= 0, worst if worst >= 0 else 1.0)

"""What has been wrong where: an exponentially decayed mean of the squared error of the rays seen in each cell.

One ray with error x takes a cell's mean e to d e + (1 - d) x, where d is the decay; the first ray ever sets it to x.
The k rays that one step sees in a cell have no order, so they count as k times their mean m: d^k e + (1 - d^k) m.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

UNSEEN = -1.0
"""The value of a cell that no ray has been seen in."""


class ErrorMap:
    """values [N] float32: the decayed means, UNSEEN before the first ray. They are all there is to save."""

    def __init__(self, cells: int, decay: float) -> None:
        self.values = torch.full((cells,), UNSEEN)
        self._values = self.values.numpy()
        self._decay = decay
        # Sums over the rays of one step. All are 0 between calls, so that a call touches only cells that were seen.
        self._sum = np.zeros(cells)
        self._count = np.zeros(cells, np.int64)

    def observe(self, cell: np.ndarray, error: np.ndarray) -> None:
        """One step's squared errors [n] float32 in cells [n] int64; what is negative or not finite is ignored."""
        good = (error >= 0) & (error < np.inf)
        if not good.all():
            cell, error = cell[good], error[good]
        np.add.at(self._sum, cell, error.astype(np.float64))
        np.add.at(self._count, cell, 1)
        count, old = self._count[cell], self._values[cell]
        mean = self._sum[cell] / count
        kept = self._decay**count
        # A cell that occurs several times is given the same value each time.
        self._values[cell] = np.where(old < 0, mean, kept * old + (1 - kept) * mean)
        self._sum[cell] = 0
        self._count[cell] = 0

    def filled(self) -> Tensor:
        """[N] float32: a cell that was not seen counts as the worst of those that were; all 1 before the first ray."""
        worst = float(self.values.max())
        return self.values.where(self.values >= 0, worst if worst >= 0 else 1.0)

"""The score of cells and the table that they are drawn by; symbols as in `raymine.pixels.sampler`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raymine.contracts import ImageSource
from raymine.pixels.cells import cut
from raymine.pixels.config import PixelConfig
from raymine.pixels.edges import edge_map
from raymine.pixels.error_map import ErrorMap


class CellScores:
    """Cells, what is known about them, and `table` [N + 1] float64: the running sum of q, from 0 to 1.

    error: the map of errors where the policy follows them, else None. Edges are read from the images once, here.
    """

    def __init__(self, config: PixelConfig, images: ImageSource) -> None:
        self.cells = cut(images.sizes, config.cells)
        self._share = torch.from_numpy(self.cells.share)
        self._limit = config.image_limit
        self.error = ErrorMap(len(self.cells), config.decay) if config.follows_error else None
        self._edges = self._running_sum(edge_map(images, self.cells), self._empty()) if config.follows_edges else None
        self.table = self._empty()
        self._running = self.table.numpy()
        self.refresh()

    def refresh(self) -> None:
        """Make the table follow the errors as they are now."""
        self._current(self.table)

    def find(self, number: np.ndarray) -> np.ndarray:
        """[n] numbers in [0, 1) -> [n] int64: the first cell whose running sum exceeds it, so that its q is not 0."""
        return np.searchsorted(self._running[1:-1], number, side="right")

    def weight(self, cell: np.ndarray, coverage: float) -> np.ndarray:
        """[n] cells -> [n] float64: w."""
        even, scored = self.cells.share[cell], self._running[cell + 1] - self._running[cell]
        return even / (even * coverage + scored * (1 - coverage))

    def heat(self, index: int) -> Tensor:
        """[H, W] float32: s in each pixel of image `index`, as it is now."""
        score = self._current(self._empty()).diff() / self._share
        return torch.from_numpy(self.cells.spread(score.float().numpy(), index))

    def _empty(self) -> Tensor:
        return torch.zeros(len(self.cells) + 1, dtype=torch.float64)

    def _current(self, out: Tensor) -> Tensor:
        """Write what the table should be now into `out` [N + 1] and return it."""
        if self.error is None:
            assert self._edges is not None
            return out.copy_(self._edges)
        self._running_sum(self._limited(self.error.filled()), out)
        return out if self._edges is None else out.lerp_(self._edges, 0.5)

    def _limited(self, values: Tensor) -> Tensor:
        """Errors [N], scaled down in images where they add up to more than the limit."""
        if self._limit is None:
            return values
        total = np.add.reduceat(values.numpy() * self.cells.share, self.cells.first)
        scale = np.minimum(1.0, self._limit * total.mean() / np.maximum(total, 1e-30))
        return values * torch.from_numpy(scale.repeat(np.diff(self.cells.first, append=len(self.cells)))).float()

    def _running_sum(self, values: Tensor, out: Tensor) -> Tensor:
        """values [N], 0 or more: write the running sum of q, or of u where all are 0, into `out` [N + 1] and return it.

        A running sum has one order, so that the result does not depend on the number of threads.
        """
        part = out[1:]
        torch.mul(values, self._share, out=part).cumsum_(0)
        if part[-1] == 0:
            part.copy_(self._share).cumsum_(0)
        part.div_(float(part[-1]))
        return out

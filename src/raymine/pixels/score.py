"""The scores of cells and the table for drawing cells by score; symbols as in `raymine.pixels.sampler`."""

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
    """The cells, their errors and edges, and `table` [N + 1] float64: the running sum of q, from 0 to 1.

    error: the error map, or None if the policy does not use errors. Edges are computed from the images once, here.
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
        """Recompute the table from the current errors."""
        self._current(self.table)

    def find(self, number: np.ndarray) -> np.ndarray:
        """Numbers [n] in [0, 1) -> cells [n] int64: the first whose running sum exceeds the number, so q > 0."""
        return np.searchsorted(self._running[1:-1], number, side="right")

    def weight(self, cell: np.ndarray, coverage: float) -> np.ndarray:
        """Cells [n] -> weights w [n] float64."""
        even, scored = self.cells.share[cell], self._running[cell + 1] - self._running[cell]
        return even / (even * coverage + scored * (1 - coverage))

    def heat(self, index: int) -> Tensor:
        """[H, W] float32: the current score s at each pixel of image `index`."""
        score = self._current(self._empty()).diff() / self._share
        return torch.from_numpy(self.cells.spread(score.float().numpy(), index))

    def _empty(self) -> Tensor:
        return torch.zeros(len(self.cells) + 1, dtype=torch.float64)

    def _current(self, out: Tensor) -> Tensor:
        """Compute the current table into `out` [N + 1] and return it."""
        if self.error is None:
            assert self._edges is not None
            return out.copy_(self._edges)
        self._running_sum(self._limited(self.error.filled()), out)
        return out if self._edges is None else out.lerp_(self._edges, 0.5)

    def _limited(self, values: Tensor) -> Tensor:
        """Errors [N], scaled down in images whose errors exceed `image_limit` times the mean over images."""
        if self._limit is None:
            return values
        total = np.add.reduceat(values.numpy() * self.cells.share, self.cells.first)
        scale = np.minimum(1.0, self._limit * total.mean() / np.maximum(total, 1e-30))
        return values * torch.from_numpy(scale.repeat(np.diff(self.cells.first, append=len(self.cells)))).float()

    def _running_sum(self, values: Tensor, out: Tensor) -> Tensor:
        """Compute the running sum of q from values [N] >= 0 into `out` [N + 1] and return it; if all are 0, that of u.

        The order of a running sum is fixed, so the result does not depend on the number of threads.
        """
        part = out[1:]
        torch.mul(values, self._share, out=part).cumsum_(0)
        if part[-1] == 0:
            part.copy_(self._share).cumsum_(0)
        part.div_(float(part[-1]))
        return out

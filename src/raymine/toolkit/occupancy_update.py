"""One update of an occupancy grid: what the trainer's sampler, the toolkit's estimator and nerfacc's drop-in share.

A grid of G levels remembers a value for each cell, values [G, cells]. An update visits some cells:

    value = max(decay * value, occupancy at a point of the cell)
    occupied  <=>  value > min(threshold, mean of the values)

The caller passes in what differs: which cells are visited and a random point of each (`Visit`), the occupancy at points
(a callback), and the scope of the mean (the shape of the values, and which of them count). The callback gets positions
only: that of a dynamic scene draws a time for each of them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError

AtPoints = Callable[[Tensor], Tensor]
"""[n, 3] world positions -> [n] or [n, 1] occupancy: the opacity of one step, or density times step length."""

LARGEST = 1e10
"""What infinity counts as."""


class Visit(NamedTuple):
    """Cells of a level [n] int64, each listed once or more, and a point of each, [n, 3] in world units."""

    cells: Tensor
    points: Tensor


def update_values(
    values: Tensor, visits: Iterable[Visit], occupancy_fn: AtPoints, decay: float, *, skip_nan: bool
) -> None:
    """Update values [G, cells] in place by one visit to each level, in order. Not differentiable.

    `occupancy_fn` is called once for each level that has cells to visit. A cell that is listed twice decays once and
    takes the larger occupancy; a cell whose value is below 0 is marked and keeps it. skip_nan: a visit that gives NaN
    changes nothing; otherwise NaN becomes the value, for the caller to notice.
    """
    for level, (cells, points) in zip(values, visits, strict=True):
        if not len(cells):
            continue
        found = occupancy_fn(points).detach().to(level.dtype).reshape(-1)
        if len(found) != len(cells):
            raise ConfigError(f"`occupancy_fn` must give one value for each of {len(cells)} points, got {len(found)}.")
        held = level[cells]
        stays = marked = held < 0
        if skip_nan:
            stays = marked | found.isnan()
            found = torch.where(found.isnan(), -torch.inf, found)
        # A cell that is listed twice is written twice, with the same value where neither or both visits gave NaN.
        level[cells] = torch.where(stays, held, held * decay)
        level.scatter_reduce_(0, cells, torch.where(marked, held, found.clamp_max(LARGEST)), "amax")


def above_limit(values: Tensor, threshold: float, counted: Tensor | None = None) -> Tensor:
    """[..., n] bool: values above min(threshold, their mean along the last dimension).

    counted: [..., n] bool, the values that the mean is over; None: all of them. The limit is at most the mean, so that
    some values exceed it unless all are equal.
    """
    if counted is None:
        mean = values.mean(-1, keepdim=True)
    else:
        total = torch.where(counted, values, torch.zeros_like(values)).sum(-1, keepdim=True)
        mean = total / counted.sum(-1, keepdim=True).clamp_min(1)
    return values > mean.clamp_max(threshold)


def grid_coordinates(cells: Tensor, sides: torch.Size | Sequence[int]) -> Tensor:
    """[n] cell indices -> [n, 3] int64 places along x, y, z; z runs fastest."""
    _, ny, nz = sides
    return torch.stack((cells // (ny * nz), cells // nz % ny, cells % nz), -1)

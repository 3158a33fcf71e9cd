"""One update of an occupancy grid. The trainer's sampler, the toolkit's estimator and the nerfacc drop-in share it.

A grid of G levels has a value for each cell, values [G, cells]. An update visits some cells:

    value = max(decay * value, occupancy at a point of the cell)
    occupied  <=>  value > min(threshold, mean of the values)

The caller chooses the cells and a random point of each (`Visit`), the function that computes the occupancy at points,
and the cells over which the mean is taken. The occupancy function gets positions only; for a dynamic scene it has to
draw a time for each of them itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.kernels.threads import row_totals

AtPoints = Callable[[Tensor], Tensor]
"""[n, 3] world positions -> [n] or [n, 1] occupancy: the opacity of one step, or density times step length."""

LARGEST = 1e10
"""Upper limit of an occupancy; infinity becomes this value."""


class Visit(NamedTuple):
    """cells [n] int64: cells of one level, possibly repeated. points [n, 3]: a point in each, in world units."""

    cells: Tensor
    points: Tensor


def update_values(
    values: Tensor, visits: Iterable[Visit], occupancy_fn: AtPoints, decay: float, *, skip_nan: bool
) -> None:
    """Update values [G, cells] in place; `visits` has one `Visit` per level. Not differentiable.

    `occupancy_fn` is called once for each level that has cells to visit. A cell that is listed twice decays once and
    takes the larger occupancy. A cell with a negative value is excluded and keeps its value. skip_nan: if True, a NaN
    occupancy changes nothing; otherwise it becomes the value, so that the caller notices it. decay: in 0..1.
    """
    if not 0 <= decay <= 1:
        raise ConfigError(f"the decay of an occupancy grid must be in 0 .. 1, got {decay}.")
    checks.reals(values=values)
    if values.ndim != 2:
        raise ConfigError(f"`values` must have shape [G, cells], got {list(values.shape)}.")
    checks.inplace(values=values)
    largest = min(LARGEST, torch.finfo(values.dtype).max)
    for level, (cells, points) in zip(values, visits, strict=True):
        cells = checks.within("cells", cells, len(level), level.device)
        checks.shapes([("points", points, (len(cells), 3))], level.device)
        if not len(cells):
            continue
        found = occupancy_fn(points).detach()
        checks.together(values=level, occupancy=found)
        if found.is_complex():
            raise ConfigError(f"`occupancy_fn` must give real numbers, got {found.dtype}.")
        found = found.to(level.dtype).reshape(-1)
        if len(found) != len(cells):
            raise ConfigError(f"`occupancy_fn` must give one value for each of {len(cells)} points, got {len(found)}.")
        held = level[cells]
        stays = marked = held < 0
        if skip_nan:
            stays = marked | found.isnan()
            found = torch.where(found.isnan(), -torch.inf, found)
        # The smaller value wins: a cell that is listed twice decays, even if one of its visits gave NaN.
        level.scatter_reduce_(0, cells, torch.where(stays, held, held * decay), "amin")
        level.scatter_reduce_(0, cells, torch.where(marked, held, found.clamp_max(largest)), "amax")


def above_limit(values: Tensor, threshold: float, counted: Tensor | None = None) -> Tensor:
    """[..., n] bool: values [..., n] above min(threshold, their mean along the last dimension).

    counted: [..., n] bool, the values over which the mean is taken; None: all. The limit is at most the mean, so that
    some values exceed it unless all are equal. Not differentiable.
    """
    checks.reals(values=values)
    checks.numbers(threshold=threshold)
    if not values.ndim:
        raise ConfigError("`values` must have shape [..., n], got a single number.")
    if counted is not None:
        checks.shapes([("counted", counted, values.shape)], values.device)
        if counted.dtype is not torch.bool:
            raise ConfigError(f"`counted` must be bool, got {counted.dtype}.")
    if counted is None:
        mean = row_totals(values) / values.shape[-1]
    else:
        mean = row_totals(torch.where(counted, values, 0.0)) / counted.sum(-1).clamp_min(1)
    return values > mean[..., None].clamp_max(threshold)


def grid_coordinates(cells: Tensor, sides: torch.Size | Sequence[int]) -> Tensor:
    """Cell indices [n] -> integer coordinates [n, 3] int64 along x, y, z. sides: (X, Y, Z) cells; z runs fastest."""
    _, ny, nz = sides
    if min(sides) < 1 or math.prod(sides) >= 2**62:
        raise ConfigError(f"`sides` must be 1 or more, with fewer than 2^62 cells; got {list(sides)}.")
    cells = checks.within("cells", cells, math.prod(sides), cells.device)
    return torch.stack((cells // (ny * nz), cells // nz % ny, cells % nz), -1)

"""Inputs and results of `traverse`."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels.packed import Samples

MOST = 1 << 24
"""Most samples of a ray in one run: float32 cannot distinguish more."""


class Grids(NamedTuple):
    """binaries [m, X, Y, Z] bool: occupied cells. aabbs [m, 6]: the box of each grid, low x, y, z, high x, y, z."""

    binaries: Tensor
    aabbs: Tensor


class Stride(NamedTuple):
    """Step length at distance t: max(step_size, cone_angle * t). With step_size <= 0 every occupied cell is one sample.

    limit: most samples of a ray; no limit if it is 0 or less.
    """

    step_size: float
    cone_angle: float = 0.0
    limit: int = 0


class Crossings(NamedTuple):
    """Crossings of rays with boxes.

    t_sorted [R, 2m]: distances in ascending order; infinity for boxes that are missed. t_indices [R, 2m]: i for
    entering box i, i + m for leaving it. hits [R, m] bool: whether the ray hits the box.
    """

    t_sorted: Tensor
    t_indices: Tensor
    hits: Tensor


class Traversed(NamedTuple):
    """Packed samples of rays, and how each ray ended.

    joined [B] bool: whether a sample starts where the sample before it ended. end [R]: distance at which the walk of
    each ray ended. edges [R] int64: number of interval edges of each ray; joined samples share an edge. n_edges: the
    sum of `edges`.
    """

    samples: Samples
    joined: Tensor
    end: Tensor
    edges: Tensor
    n_edges: int


def too_many(step: float) -> ConfigError:
    """The error for a ray with more than MOST samples."""
    return ConfigError(f"steps of {step:g} give a ray more than {MOST} samples. Take longer steps.")

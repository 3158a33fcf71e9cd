"""What goes into a walk through grids, and what comes out of it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels.packed import Samples

MOST = 1 << 24
"""Samples of one ray in one go: float32 tells no more of them apart."""


class Grids(NamedTuple):
    """binaries [m, X, Y, Z] bool: which cells are occupied. aabbs [m, 6]: their boxes, low x, y, z, high x, y, z."""

    binaries: Tensor
    aabbs: Tensor


class Stride(NamedTuple):
    """How a ray steps: dt(t) = max(step_size, cone_angle * t); step_size <= 0 makes every occupied cell one sample.

    limit: samples after which a ray stops; none if 0 or less.
    """

    step_size: float
    cone_angle: float = 0.0
    limit: int = 0


class Crossings(NamedTuple):
    """Where rays cross boxes: t_sorted [R, 2m] in order, t_indices [R, 2m] (box i is entered at i and left at i + m),
    hits [R, m] bool. Boxes that are missed have their crossings at infinity."""

    t_sorted: Tensor
    t_indices: Tensor
    hits: Tensor


class Traversed(NamedTuple):
    """Packed samples of rays, and where walks ended.

    joined [B] bool: whether a sample starts where the one before it ended. end [R]: where each walk stopped.
    edges [R] int64: edges of a ray's intervals; two samples that are joined share one. n_edges: the sum of `edges`.
    """

    samples: Samples
    joined: Tensor
    end: Tensor
    edges: Tensor
    n_edges: int


def too_many(step: float) -> ConfigError:
    return ConfigError(f"steps of {step:g} give a ray more than {MOST} samples. Take longer steps.")

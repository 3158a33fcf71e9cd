"""Inputs of the networks of a hash-grid field: positions in the unit cube and encoded directions, in plain torch.

Directions are encoded by the real spherical harmonics of degrees 0 to 3 (16 functions), orthonormal over the sphere;
the order inside a degree is m = -degree .. degree.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from raymine.kernels.contraction import box_units, contract
from raymine.kernels.harmonics import reference

C0 = 0.5 * math.sqrt(1 / math.pi)
C1 = math.sqrt(3 / (4 * math.pi))
C2 = 0.5 * math.sqrt(15 / math.pi)
C2_0 = 0.25 * math.sqrt(5 / math.pi)
C3_3 = 0.25 * math.sqrt(35 / (2 * math.pi))
C3_2 = 0.5 * math.sqrt(105 / math.pi)
C3_1 = 0.25 * math.sqrt(21 / (2 * math.pi))
C3_0 = 0.25 * math.sqrt(7 / math.pi)

DEGREE = 4
WIDTH = DEGREE**2


class Box(NamedTuple):
    """low, high [3]: the inner box in world units. unbounded: whether space outside it is contracted into the cube."""

    low: Tensor
    high: Tensor
    unbounded: bool


def to_unit_cube(positions: Tensor, box: Box) -> Tensor:
    """World positions [n, 3] -> [n, 3] in the unit cube. Differentiable.

    Bounded: the box becomes 0..1, and points outside it leave the cube. Unbounded: the box becomes 0.25..0.75, and all
    of space becomes 0..1.
    """
    low, high, unbounded = box
    if not unbounded:
        return (positions - low) / (high - low)
    return contract(box_units(positions, low, high)) * 0.25 + 0.5


def harmonics(directions: Tensor) -> Tensor:
    """[n, 3] unit directions -> [n, 16]. Differentiable."""
    return reference.harmonics(directions, DEGREE)

"""What the networks of a hash-grid field are fed: positions in the unit cube and encoded directions, in plain torch.

Directions are encoded by the real spherical harmonics of degrees 0 to 3 (16 functions), orthonormal over the sphere;
the order inside a degree is m = -degree .. degree.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

C0 = 0.5 * math.sqrt(1 / math.pi)
C1 = math.sqrt(3 / (4 * math.pi))
C2 = 0.5 * math.sqrt(15 / math.pi)
C2_0 = 0.25 * math.sqrt(5 / math.pi)
C3_3 = 0.25 * math.sqrt(35 / (2 * math.pi))
C3_2 = 0.5 * math.sqrt(105 / math.pi)
C3_1 = 0.25 * math.sqrt(21 / (2 * math.pi))
C3_0 = 0.25 * math.sqrt(7 / math.pi)

WIDTH = 16


class Box(NamedTuple):
    """The inner box in world units, low and high [3], and whether all of space around it is squashed into the cube."""

    low: Tensor
    high: Tensor
    unbounded: bool


def contract(unit: Tensor) -> Tensor:
    """Squash all of space into the cube of half side 2 (infinity norm): x inside |x| <= 1, (2 - 1/|x|) x / |x| outside.

    [n, 3] -> [n, 3], continuous with a continuous first derivative along rays from the centre. Differentiable.
    """
    norm = unit.abs().amax(-1, keepdim=True).clamp_min(1.0)
    return unit * ((2.0 - 1.0 / norm) / norm)


def to_unit_cube(positions: Tensor, box: Box) -> Tensor:
    """[n, 3] world -> [n, 3] in 0..1. Bounded: the box fills the cube. Unbounded: it fills half of each side."""
    low, high, unbounded = box
    if not unbounded:
        return (positions - low) / (high - low)
    unit = (positions - (low + high) * 0.5) * (2.0 / (high - low))
    return contract(unit) * 0.25 + 0.5


def harmonics(directions: Tensor) -> Tensor:
    """[n, 3] unit directions -> [n, 16]. Differentiable."""
    x, y, z = directions.unbind(-1)
    xx, yy, zz, xy, yz, xz = x * x, y * y, z * z, x * y, y * z, x * z
    return torch.stack(
        (
            torch.full_like(x, C0),
            -C1 * y,
            C1 * z,
            -C1 * x,
            C2 * xy,
            -C2 * yz,
            C2_0 * (3 * zz - 1),
            -C2 * xz,
            0.5 * C2 * (xx - yy),
            C3_3 * y * (yy - 3 * xx),
            C3_2 * xy * z,
            C3_1 * y * (1 - 5 * zz),
            C3_0 * z * (5 * zz - 3),
            C3_1 * x * (1 - 5 * zz),
            0.5 * C3_2 * z * (xx - yy),
            C3_3 * x * (3 * yy - xx),
        ),
        dim=-1,
    )

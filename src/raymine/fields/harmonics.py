"""Real spherical harmonics of directions, degrees 0 to 3 (16 functions), the usual encoding of a view direction.

Orthonormal over the sphere; the order inside a degree is m = -degree .. degree.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_C0 = 0.5 * math.sqrt(1 / math.pi)
_C1 = math.sqrt(3 / (4 * math.pi))
_C2 = 0.5 * math.sqrt(15 / math.pi)
_C2_0 = 0.25 * math.sqrt(5 / math.pi)
_C3_3 = 0.25 * math.sqrt(35 / (2 * math.pi))
_C3_2 = 0.5 * math.sqrt(105 / math.pi)
_C3_1 = 0.25 * math.sqrt(21 / (2 * math.pi))
_C3_0 = 0.25 * math.sqrt(7 / math.pi)

WIDTH = 16


def harmonics(directions: Tensor) -> Tensor:
    """[n, 3] unit directions -> [n, 16]. Differentiable."""
    x, y, z = directions.unbind(-1)
    xx, yy, zz, xy, yz, xz = x * x, y * y, z * z, x * y, y * z, x * z
    return torch.stack(
        (
            torch.full_like(x, _C0),
            -_C1 * y,
            _C1 * z,
            -_C1 * x,
            _C2 * xy,
            -_C2 * yz,
            _C2_0 * (3 * zz - 1),
            -_C2 * xz,
            0.5 * _C2 * (xx - yy),
            _C3_3 * y * (yy - 3 * xx),
            _C3_2 * xy * z,
            _C3_1 * y * (1 - 5 * zz),
            _C3_0 * z * (5 * zz - 3),
            _C3_1 * x * (1 - 5 * zz),
            0.5 * _C3_2 * z * (xx - yy),
            _C3_3 * x * (3 * yy - xx),
        ),
        dim=-1,
    )

"""`nerfacc.contraction`: maps between space and the unit cube of a grid."""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.toolkit.contraction import from_unit_cube, to_unit_cube


class ContractionType(Enum):
    """How a grid covers space. A point x of a region of interest low .. high has the unit position u = (x - low) /
    (high - low), which is in 0..1 inside the region.

    AABB: u itself; the grid covers the region alone.
    UN_BOUNDED_TANH: (tanh(u - 1/2) + 1) / 2 on each axis.
    UN_BOUNDED_SPHERE: the contraction of mip-NeRF 360 into a ball (`raymine.toolkit.contraction.to_unit_cube`). The
        region goes to 0.25..0.75, and everything to the ball of radius 1/2 about the centre.
    """

    AABB = 0
    UN_BOUNDED_TANH = 1
    UN_BOUNDED_SPHERE = 2

    def to_cpp_version(self) -> ContractionType:
        """Itself: there is no C++ side."""
        return self


@torch.no_grad()
def contract(x: Tensor, roi: Tensor, type: ContractionType = ContractionType.AABB) -> Tensor:
    """Points x (..., 3) of space -> (..., 3) in the unit cube; roi (6,): low and high corner. Not differentiable.

    With AABB, points outside of the region are mapped outside of the cube.
    """
    low, high = _corners(x, roi, type)
    if type is ContractionType.UN_BOUNDED_SPHERE:
        return to_unit_cube(x, low, high, "l2")
    unit = (x - low) / (high - low)
    return unit if type is ContractionType.AABB else torch.tanh(unit - 0.5) * 0.5 + 0.5


@torch.no_grad()
def contract_inv(x: Tensor, roi: Tensor, type: ContractionType = ContractionType.AABB) -> Tensor:
    """The inverse of `contract`, (..., 3) -> (..., 3). Not differentiable.

    Points at infinity become far away, but finite: 1e10 times the size of the region, as in nerfacc.
    """
    low, high = _corners(x, roi, type)
    if type is ContractionType.UN_BOUNDED_SPHERE:
        ball = (x - 0.5) * 4.0
        at_infinity = torch.linalg.vector_norm(ball, dim=-1, keepdim=True) >= 2.0
        distant = (low + high) * 0.5 + ball * (1e10 * 0.5) * (high - low)
        return torch.where(at_infinity, distant, from_unit_cube(x, low, high, "l2"))
    unit = x if type is ContractionType.AABB else torch.atanh(x * 2.0 - 1.0).clamp(-1e10, 1e10) + 0.5
    return unit * (high - low) + low


def _corners(x: Tensor, roi: Tensor, type: ContractionType) -> tuple[Tensor, Tensor]:
    if not isinstance(type, ContractionType):
        raise ConfigError(f"`type` must be a member of `ContractionType`, got {type!r}.")
    shape = (*x.shape[:-1], 3) if x.ndim else (3,)
    checks.floats((("x", x, shape), ("roi", roi, (6,))), x.device)
    return roi[:3], roi[3:]

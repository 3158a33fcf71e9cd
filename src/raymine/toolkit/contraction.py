"""Contraction of all of space into a ball or a cube, and its inverse: for unbounded scenes in bounded fields.

With |x| the Euclidean norm ("l2") or the largest absolute coordinate ("inf"), a point x [..., D] is mapped to

    y = x                        where |x| <= 1
    y = (2 - 1/|x|) x/|x|        outside

so that |y| < 2. Value and derivative along a ray from the centre are continuous at |x| = 1. The inverse for |y| > 1 is

    x = y / (|y| (2 - |y|))

If a coordinate of a point is NaN, all of them become NaN. Everything is differentiable, also at 0 and at |x| = 1. At
infinity the gradient is 0.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.kernels.contraction import box_units
from raymine.kernels.contraction import contract as contract_into_cube

Norm = Literal["l2", "inf"]


def contract(positions: Tensor, norm: Norm = "inf") -> Tensor:
    """[..., D] any points -> [..., D] in the ball ("l2") or cube ("inf") of radius 2. Differentiable.

    A point at infinity is mapped to the boundary |y| = 2, in the direction of its infinite coordinates: (inf, -inf, 3)
    in the direction (1, -1, 0). A finite point is mapped to the boundary if 2 - 1/|x| rounds to 2.
    """
    _check(positions, norm)
    endless = torch.isinf(positions)
    far = endless.any(-1, keepdim=True) & ~torch.isnan(positions).any(-1, keepdim=True)
    # Infinity is replaced before the formula, not after it: the formula would give NaN, and 0 * NaN is a NaN gradient.
    finite = torch.where(far, torch.where(endless, positions.detach().sign(), 0.0), positions)
    direction, inverse = _polar(finite, norm)
    squashed = direction * (2.0 - torch.where(far, 0.0, inverse))
    if norm == "l2":
        return squashed
    # The hash-grid field uses `contract_into_cube`, which rounds differently; the results here agree with it bit for
    # bit. Its gradient overflows for very large coordinates, where the formula above is used instead.
    limit = math.sqrt(torch.finfo(positions.dtype).max)
    usual = positions.detach().abs().amax(-1, keepdim=True) < limit
    return torch.where(usual, contract_into_cube(torch.where(usual, positions, 0.0)), squashed)


def uncontract(squashed: Tensor, norm: Norm = "inf") -> Tensor:
    """The inverse of `contract`, [..., D] -> [..., D]. Differentiable for |y| < 2.

    Points with |y| >= 2 are mapped to infinity: coordinates of 0 stay 0, the others become infinite.
    """
    _check(squashed, norm)
    rim = torch.linalg.vector_norm(squashed.detach(), 2 if norm == "l2" else torch.inf, -1, keepdim=True) >= 2.0
    direction, inverse = _polar(torch.where(rim, 0.0, squashed), norm)
    outer = torch.where(squashed == 0, 0.0, squashed.detach().sign() * torch.inf)
    return torch.where(rim, outer, direction / (2.0 - 1.0 / inverse))


def to_unit_cube(positions: Tensor, low: Tensor, high: Tensor, norm: Norm = "inf") -> Tensor:
    """[..., D] world positions -> [..., D] in 0..1; the box low, high [D] is mapped to 0.25..0.75. Differentiable.

    The box is first scaled to the cube -1..1, then space is contracted. If a side of the box has length 0, a point in
    its plane gives NaN (0/0), and any other point counts as infinitely far away.
    """
    _check_box(low, high, positions=positions)
    return contract(box_units(positions, low, high), norm) * 0.25 + 0.5


def from_unit_cube(cube: Tensor, low: Tensor, high: Tensor, norm: Norm = "inf") -> Tensor:
    """The inverse of `to_unit_cube`: [..., D] in 0..1 -> [..., D] world positions. Differentiable inside the cube."""
    _check_box(low, high, cube=cube)
    return (low + high) * 0.5 + uncontract((cube - 0.5) * 4.0, norm) * ((high - low) * 0.5)


def _polar(points: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """x/s [..., D] and 1/s [..., 1] with s = max(norm, 1). No square root of 0 is taken, so gradients are finite."""
    largest = points.abs().amax(-1, keepdim=True).clamp_min(1.0)
    if norm == "inf":
        return points / largest, 1.0 / largest
    # Coordinates are divided by the largest one first, so that their squares do not overflow for any finite point.
    scale = largest.detach()
    scaled = points / scale
    size = scaled.square().sum(-1, keepdim=True).clamp_min(1.0 / scale.square()).sqrt()
    return scaled / size, 1.0 / scale / size


def _check(points: Tensor, norm: Norm) -> None:
    if norm not in ("l2", "inf"):
        raise ConfigError(f"`norm` must be 'l2' or 'inf', got {norm!r}.")
    if points.ndim < 1 or points.shape[-1] < 1 or not points.is_floating_point():
        raise ConfigError(f"points must be floats of shape [..., D], got {points.dtype} of shape {list(points.shape)}.")


def _check_box(low: Tensor, high: Tensor, **named: Tensor) -> None:
    checks.reals(**named, low=low, high=high)
    (points,) = named.values()
    wanted = [points.shape[-1]] if points.ndim else []
    for name, value in (("low", low), ("high", high)):
        if list(value.shape) != wanted:
            raise ConfigError(f"`{name}` must have shape {wanted}, one number per coordinate, got {list(value.shape)}.")

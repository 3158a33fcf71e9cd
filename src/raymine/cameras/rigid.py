"""Small rigid motions as six numbers, in torch: the exponential map of SE(3) (rotations and translations).

A twist (w, v) has a rotation vector w (its length is the angle in radians, its direction the axis) and a translation
part v. With K = [w]x, the matrix of the cross product by w, and a = |w|:

    R = I + A K + B K^2        A = sin(a) / a      B = (1 - cos(a)) / a^2
    t = (I + B K + C K^2) v    C = (a - sin(a)) / a^3
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from raymine.errors import ConfigError

_TERMS = 9
"""Terms of the power series of A, B and C. For angles up to 1 the rest is below the rounding of float64."""


def exp_se3(twist: Tensor) -> Tensor:
    """Twists [n, 6], rotation vector before translation part -> rigid motions [n, 3, 4].

    Differentiable, any number of times, at 0 too. A twist of 0 gives the identity exactly.
    """
    if twist.ndim != 2 or twist.shape[1] != 6 or not twist.is_floating_point():
        raise ConfigError(
            f"`twist` must be floating-point of shape [n, 6], got {twist.dtype} of shape {list(twist.shape)}."
        )
    rotation, shift = twist[:, :3], twist[:, 3:]
    a, b, c = (factor[:, None, None] for factor in _factors(rotation.square().sum(1)))
    cross = cross_matrix(rotation)
    square = cross @ cross
    identity = torch.eye(3, dtype=twist.dtype, device=twist.device)
    turn = identity + a * cross + b * square
    moved = (identity + b * cross + c * square) @ shift[:, :, None]
    return torch.cat((turn, moved), 2)


def cross_matrix(vector: Tensor) -> Tensor:
    """Vectors [n, 3] -> [n, 3, 3]: the matrices that multiply by them as a cross product."""
    x, y, z = vector.unbind(1)
    zero = torch.zeros_like(x)
    return torch.stack((zero, -z, y, z, zero, -x, -y, x, zero), 1).reshape(-1, 3, 3)


def _factors(square: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A, B and C [n] of squared angles [n]."""
    small = square < 1
    # Each branch sees arguments at which its own gradient is finite.
    inside, outside = torch.where(small, square, 0.0), torch.where(small, 1.0, square)
    angle = outside.sqrt()
    sine = torch.sin(angle)
    closed = (sine / angle, 2 * torch.sin(angle / 2).square() / outside, (angle - sine) / (angle * outside))
    a, b, c = (torch.where(small, _series(inside, first), far) for first, far in enumerate(closed, start=1))
    return a, b, c


def _series(square: Tensor, first: int) -> Tensor:
    """sum over k of (-x)^k / (2 k + first)!, by Horner's rule: A, B and C for `first` = 1, 2 and 3."""
    value = torch.zeros_like(square)
    for k in reversed(range(_TERMS)):
        value = 1 / math.factorial(2 * k + first) - square * value
    return value

"""Contraction of all of space into a cube, in plain torch. This module is the definition, rounding included.

With |x| the largest absolute coordinate, a point x goes to

    y = x                      where |x| <= 1
    y = ((2 - 1/|x|) / |x|) x  outside

so that |y| <= 2. The hash-grid field and `raymine.toolkit.contraction` call these functions. The Numba and Triton
kernels of `ngp_step` contain copies (`layers.place` and `gpu._place`), because a compiled kernel cannot call torch.
Tests compare the copies with this module.
"""

from __future__ import annotations

from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks


def contract(points: Tensor) -> Tensor:
    """[..., D] finite points -> [..., D] in the cube -2..2. Differentiable.

    If a coordinate is NaN, the whole point becomes NaN. The derivative along a ray from the centre is continuous.
    """
    if not points.is_floating_point() or not points.ndim or not points.shape[-1]:
        raise ConfigError(
            f"`points` must be floating point [..., D], got {points.dtype} of shape {list(points.shape)}."
        )
    norm = points.abs().amax(-1, keepdim=True).clamp_min(1.0)
    return points * ((2.0 - 1.0 / norm) / norm)


def box_units(positions: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """World positions [..., D] -> [..., D] in units of a box: the box low, high [D] becomes -1..1. Differentiable."""
    checks.floats((("positions", positions, positions.shape), ("low", low, positions.shape[-1:])), positions.device)
    checks.floats((("high", high, positions.shape[-1:]),), positions.device, positions.dtype)
    return (positions - (low + high) * 0.5) * (2.0 / (high - low))

"""All of space contracted into a cube, in plain torch: the one definition, with its rounding.

With |x| the largest absolute coordinate, a point x goes to

    y = x                      where |x| <= 1
    y = ((2 - 1/|x|) / |x|) x  outside

so that |y| <= 2. The hash-grid field and `raymine.toolkit.contraction` call these functions. The Numba and Triton
kernels of `ngp_step` keep inlined copies (`layers.place` and `gpu._place`), since a compiled kernel cannot call torch;
tests compare them with this module.
"""

from __future__ import annotations

from torch import Tensor


def contract(points: Tensor) -> Tensor:
    """[..., D] finite points -> [..., D] in the cube of half side 2. NaN makes its whole point NaN. Differentiable.

    The first derivative along a ray from the centre is continuous.
    """
    norm = points.abs().amax(-1, keepdim=True).clamp_min(1.0)
    return points * ((2.0 - 1.0 / norm) / norm)


def box_units(positions: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """World positions [..., D] relative to the centre of the box low, high [D], in half sides of it. Differentiable."""
    return (positions - (low + high) * 0.5) * (2.0 / (high - low))

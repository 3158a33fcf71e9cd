"""World positions to the unit cube that grids live in."""

from __future__ import annotations

import torch
from torch import Tensor


def contract(unit: Tensor) -> Tensor:
    """Squash all of space into the cube of half side 2 (infinity norm): x inside |x| <= 1, (2 - 1/|x|) x / |x| outside.

    [n, 3] -> [n, 3], continuous with a continuous first derivative along rays from the centre. Differentiable.
    """
    norm = unit.abs().amax(-1, keepdim=True).clamp_min(1.0)
    return unit * ((2.0 - 1.0 / norm) / norm)


def to_unit_cube(positions: Tensor, low: Tensor, high: Tensor, unbounded: bool) -> Tensor:
    """[n, 3] world -> [n, 3] in 0..1. Bounded: the box fills the cube. Unbounded: it fills half of each side."""
    if not unbounded:
        return (positions - low) / (high - low)
    unit = (positions - (low + high) * 0.5) * (2.0 / (high - low))
    return contract(unit) * 0.25 + 0.5


def from_unit_cube(cube: Tensor, low: Tensor, high: Tensor, unbounded: bool) -> Tensor:
    """The inverse of `to_unit_cube`."""
    if not unbounded:
        return low + cube * (high - low)
    squashed = (cube - 0.5) * 4.0
    norm = squashed.abs().amax(-1, keepdim=True)
    outside = squashed / (norm * (2.0 - norm)).clamp_min(1e-9)
    return (low + high) * 0.5 + torch.where(norm > 1.0, outside, squashed) * (high - low) * 0.5

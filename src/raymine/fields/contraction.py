"""From the unit cube that grids live in back to the world; the way there is `ngp_step.op.to_unit_cube`."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.kernels.ngp_step.op import Box


def from_unit_cube(cube: Tensor, box: Box) -> Tensor:
    """The inverse of `to_unit_cube`, [n, 3] -> [n, 3]."""
    low, high, unbounded = box
    if not unbounded:
        return low + cube * (high - low)
    squashed = (cube - 0.5) * 4.0
    norm = squashed.abs().amax(-1, keepdim=True)
    outside = squashed / (norm * (2.0 - norm)).clamp_min(1e-9)
    return (low + high) * 0.5 + torch.where(norm > 1.0, outside, squashed) * (high - low) * 0.5

"""The parts of volume rendering in plain torch, differentiable by autograd: the definition.

Symbols, for sample i of a ray with interval length d_i and density s_i:

    o_i = s_i d_i                        optical depth; an infinite density counts as the largest finite number
    a_i = 1 - exp(-o_i)                  opacity of the interval
    T_i = exp(-sum of o_j over j < i)    transmittance up to it
    w_i = T_i a_i                        weight

    colour = sum w_i c_i + (1 - sum w_i) background,   opacity = sum w_i,   depth = sum w_i m_i   (m_i the midpoint)

Nothing else is clamped: the formulas also hold for negative densities. This is `composite` without its early stop, and
with T_i and a_i among the results.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.kernels.composite.reference import transmittance


def volume(
    density: Tensor,
    colour: Tensor,
    t_start: Tensor,
    t_end: Tensor,
    first: Tensor,
    count: Tensor,
    background: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """density [B], colour [B, 3], background [3] or [R, 3] or None (black)
    -> colour [R, 3], opacity [R], depth [R], w, T and a [B]."""
    ray_id = torch.repeat_interleave(torch.arange(len(first), device=first.device), count)
    length, finite = t_end - t_start, density.clamp(max=torch.finfo(density.dtype).max)
    through = transmittance(finite, length, ray_id, first)
    alpha = -torch.expm1(-finite * length)
    weights = through * alpha
    zero = torch.zeros(len(first), dtype=density.dtype, device=density.device)
    opacity = zero.index_add(0, ray_id, weights)
    depth = zero.index_add(0, ray_id, weights * (t_start + t_end) * 0.5)
    mixed = colour.new_zeros(len(first), 3).index_add(0, ray_id, weights[:, None] * colour)
    if background is not None:
        mixed = mixed + (1 - opacity)[:, None] * background
    return mixed, opacity, depth, weights, through, alpha

"""Volume rendering in plain torch, differentiable by autograd: the definition.

Symbols, for sample i of a ray with interval length d_i and density s_i:

    a_i = 1 - exp(-s_i d_i)                 opacity of the interval
    T_i = exp(-sum of s_j d_j over j < i)   transmittance up to it
    w_i = T_i a_i                           weight, 0 once T_i < stop (early stop)

    colour = sum w_i c_i + (1 - sum w_i) background,   opacity = sum w_i,   depth = sum w_i m_i   (m_i the midpoint)
"""

from __future__ import annotations

import torch
from torch import Tensor


def transmittance(density: Tensor, length: Tensor, ray_id: Tensor, first: Tensor) -> Tensor:
    """density, length, ray_id [B], first [R] -> T_i [B].

    The running sum goes over the whole batch and the sum at the start of each ray is subtracted. It is float64, so that
    the difference keeps enough digits.
    """
    optical = (density * length).double()
    # The sum is shifted by one instead of subtracting the sample's own depth. So a NaN changes T only behind its own
    # sample, and it shows in the weight of that sample.
    before = torch.cat((optical.new_zeros(1), optical.cumsum(0)[:-1])) if len(optical) else optical
    start = before[first.clamp(max=max(len(density) - 1, 0))] if len(density) else before
    return torch.exp(-(before - start[ray_id])).to(density.dtype)


def composite(
    density: Tensor,
    colour: Tensor,
    t_start: Tensor,
    t_end: Tensor,
    first: Tensor,
    count: Tensor,
    background: Tensor,
    stop: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """density [B], colour [B, 3], background [R, 3] -> colour [R, 3], opacity [R], depth [R], weights [B]."""
    ray_id = torch.repeat_interleave(torch.arange(len(first), device=first.device), count)
    length = t_end - t_start
    through = transmittance(density, length, ray_id, first)
    weights = through * -torch.expm1(-density * length)
    weights = torch.where(through.detach() >= stop, weights, torch.zeros_like(weights))
    zero = torch.zeros(len(first), dtype=density.dtype, device=density.device)
    opacity = zero.index_add(0, ray_id, weights)
    depth = zero.index_add(0, ray_id, weights * (t_start + t_end) * 0.5)
    mixed = torch.zeros_like(background).index_add(0, ray_id, weights[:, None] * colour)
    return mixed + (1 - opacity)[:, None] * background, opacity, depth, weights


def visible(
    density: Tensor, t_start: Tensor, t_end: Tensor, first: Tensor, count: Tensor, stop: float, faint: float
) -> Tensor:
    """[B] bool: T_i >= stop and a_i >= faint."""
    ray_id = torch.repeat_interleave(torch.arange(len(first), device=first.device), count)
    length = t_end - t_start
    alpha = -torch.expm1(-density * length)
    return (transmittance(density, length, ray_id, first) >= stop) & (alpha >= faint)

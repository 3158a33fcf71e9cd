"""Losses on the weights along a ray, batched and packed, in linear time.

Distortion (mip-NeRF 360): for a ray of intervals with weights w_i, midpoints m_i and lengths d_i,

    loss = sum over i, j of w_i w_j |m_i - m_j| + 1/3 sum over i of w_i^2 d_i

It is small if the weight is concentrated in one place. The gap m_k+1 - m_k is part of |m_i - m_j| for all pairs with
i <= k < j. So with P_k = w_0 + .. + w_k and the sum of all weights S, the double sum is

    2 sum over k of (m_k+1 - m_k) P_k (S - P_k)

It takes linear time, and no large terms cancel, even if the samples are far away.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.toolkit.pack import Pack, pack_counts
from raymine.toolkit.scan import running_sum


def distortion_loss(weights: Tensor, t_starts: Tensor, t_ends: Tensor, *, pack: Pack | None = None) -> Tensor:
    """The distortion loss of each ray. Differentiable in weights, t_starts and t_ends.

    Batched: weights, t_starts, t_ends [..., n] -> [...]. Packed: [B] each, with the pack -> [R]. Intervals must ascend
    along a ray, with or without gaps. The loss of a ray without samples is 0. NaN or infinity in a ray makes its loss
    NaN or infinite, but does not affect other rays.
    """
    checks.alike(weights=weights, t_starts=t_starts, t_ends=t_ends)
    middle, length = (t_starts + t_ends) * 0.5, t_ends - t_starts
    own = weights * weights * length / 3.0
    if pack is not None:
        return _packed(weights, middle, own, pack)
    upto, behind = running_sum(weights), running_sum(weights.flip(-1), exclusive=True).flip(-1)
    between = middle.diff(dim=-1) * (upto * behind)[..., :-1]
    return own.sum(-1) + 2.0 * between.sum(-1)


def _packed(weights: Tensor, middle: Tensor, own: Tensor, pack: Pack) -> Tensor:
    if weights.ndim != 1:
        raise ConfigError(f"With a pack `weights` must have shape [B], got {list(weights.shape)}.")
    pack = Pack(*checks.pack(*pack, len(weights), weights.device))
    ray = pack.ray_id(len(weights))
    upto = running_sum(weights, pack)
    # The weight behind a sample is summed from the far end: subtracting from the total would lose it in rounding.
    behind = running_sum(weights.flip(0), pack_counts(pack.count.flip(0)), exclusive=True).flip(0)
    same = torch.cat((ray[1:] == ray[:-1], ray.new_zeros(min(len(ray), 1), dtype=torch.bool)))
    # Masked before the product: the gap to a ray that is not finite would turn a gradient of 0 into NaN.
    gaps = torch.where(same, middle.roll(-1) - middle, 0.0)
    each = own + 2.0 * gaps * (upto * behind)
    return each.new_zeros(pack.n_rays).index_add(0, ray, each)

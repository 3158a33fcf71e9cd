"""`nerfacc.losses`: the distortion loss."""

from __future__ import annotations

from torch import Tensor

from raymine.compat.nerfacc_v03._arguments import columns, floating, packed
from raymine.toolkit.losses import distortion_loss


def distortion(packed_info: Tensor, weights: Tensor, t_starts: Tensor, t_ends: Tensor) -> Tensor:
    """Distortion loss (n_rays,) of each ray, in linear time.

    packed_info: (n_rays, 2). weights: (all_samples,). t_starts, t_ends: (all_samples, 1), ascending along each ray.
    Differentiable in weights, t_starts and t_ends.
    """
    start, end = columns(t_starts=t_starts, t_ends=t_ends)
    floating("weights", weights, start.shape, start)
    return distortion_loss(weights, start, end, pack=packed(packed_info, start))

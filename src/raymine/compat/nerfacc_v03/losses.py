"""`nerfacc.losses`: the distortion loss."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.compat.nerfacc_v03._arguments import columns, floating, packed
from raymine.kernels import checks
from raymine.toolkit.losses import distortion_loss
from raymine.toolkit.pack import Pack


def distortion(packed_info: Tensor, weights: Tensor, t_starts: Tensor, t_ends: Tensor) -> Tensor:
    """Distortion loss (n_rays,) of each ray, in linear time.

    packed_info: (n_rays, 2). weights: (all_samples,). t_starts, t_ends: (all_samples, 1), ascending along each ray.
    Differentiable in weights, t_starts and t_ends.
    """
    start, end = columns(t_starts=t_starts, t_ends=t_ends)
    floating("weights", weights, start.shape, start)
    pack = Pack(*checks.pack(*packed(packed_info, start), len(start), start.device))
    kind = torch.promote_types(weights.dtype, torch.promote_types(start.dtype, end.dtype))
    return distortion_loss(weights.to(kind), start.to(kind), end.to(kind), pack=pack)

"""`nerfacc.losses`: the distortion loss."""

from __future__ import annotations

from torch import Tensor

from raymine.toolkit.losses import distortion_loss
from raymine.toolkit.pack import pack_ids


def distortion(weights: Tensor, t_starts: Tensor, t_ends: Tensor, ray_indices: Tensor, n_rays: int) -> Tensor:
    """Distortion loss of each ray: weights, t_starts, t_ends, ray_indices (n_samples,) -> (n_rays, 1).

    ray_indices must ascend, and so must the intervals of a ray. Differentiable in weights, t_starts and t_ends.
    """
    return distortion_loss(weights, t_starts, t_ends, pack=pack_ids(ray_indices, n_rays))[:, None]

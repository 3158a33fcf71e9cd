"""`nerfacc.losses`: the distortion of rays."""

from __future__ import annotations

from torch import Tensor

from raymine.toolkit.losses import distortion_loss
from raymine.toolkit.pack import pack_ids


def distortion(weights: Tensor, t_starts: Tensor, t_ends: Tensor, ray_indices: Tensor, n_rays: int) -> Tensor:
    """Four times (n_samples,), ascending ray by ray -> (n_rays, 1). Differentiable in all but the indices."""
    return distortion_loss(weights, t_starts, t_ends, pack=pack_ids(ray_indices, n_rays))[:, None]

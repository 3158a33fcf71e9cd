"""`nerfacc.cdf`: resampling of rays by their weights."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.compat.nerfacc_v03._arguments import columns, floating, packed, whole
from raymine.kernels import checks
from raymine.toolkit.pack import Pack, pack_counts
from raymine.toolkit.scan import running_sum

_LEAST = 1e-5
"""Weights of a ray whose sum is smaller are raised evenly to this sum."""


@torch.no_grad()
def ray_resampling(
    packed_info: Tensor, t_starts: Tensor, t_ends: Tensor, weights: Tensor, n_samples: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Resample every ray to n_samples intervals by the CDF of its weights. Not differentiable.

    packed_info: (n_rays, 2). t_starts, t_ends: (all_samples, 1). weights: (all_samples,), not negative.
    Returns packed_info (n_rays, 2) int32, and t_starts, t_ends (n_rays_with_samples * n_samples, 1). With n =
    n_samples, the edges of the new intervals are the points where the CDF, linear within each interval, reaches
    (k + 1/2) / (n + 1) for k = 0 .. n. A ray without samples stays empty.
    """
    start, end = columns(t_starts=t_starts, t_ends=t_ends)
    floating("weights", weights, start.shape, start)
    n = whole("n_samples", n_samples, 1)
    pack = Pack(*checks.pack(*packed(packed_info, start), len(start), start.device))
    some = pack.count > 0
    info = torch.stack(pack_counts(some * n), -1).int()
    if not len(start):
        return info, t_starts.clone(), t_ends.clone()
    ray = pack.ray_id(len(start))
    # All rays are searched at once in float64, where ray r has the values r .. r + 1. So nothing waits for the device.
    mass = weights.double()
    total = mass.new_zeros(pack.n_rays).index_add_(0, ray, mass)
    lacking = (_LEAST - total).clamp_min(0.0)
    share = (mass + (lacking / pack.count.clamp_min(1))[ray]) / (total + lacking)[ray]
    after = running_sum(share, pack).clamp(0.0, 1.0)
    u = (torch.arange(n + 1, device=start.device) + 0.5).double() / (n + 1)
    rays = torch.arange(pack.n_rays, device=start.device)
    found = torch.searchsorted(ray + after, rays[:, None] + u, right=True)
    found = torch.minimum(torch.maximum(found, pack.first[:, None]), (pack.first + pack.count - 1)[:, None])
    found = found.clamp(0, len(start) - 1)
    inside = ((u - (after - share)[found]) / share[found]).clamp(0.0, 1.0)
    edges = (start[found] + inside * (end - start)[found]).to(start.dtype)[some]
    return info, edges[:, :-1].reshape(-1, 1), edges[:, 1:].reshape(-1, 1)

"""`nerfacc.pack`: which samples belong to which ray."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.toolkit.pack import Pack, pack_counts, pack_ids


@torch.no_grad()
def pack_info(ray_indices: Tensor, n_rays: int | None = None) -> Tensor:
    """[R, 2]: first sample of each ray and its number of samples, in the type of ray_indices [B]. Not differentiable.

    n_rays: R. Without it, R is the largest index plus one (0 without samples), which waits for the device.
    """
    rays = checks.integers("ray_indices", ray_indices, ray_indices.device)
    if n_rays is None:
        checks.present(ray_indices=rays)
        n_rays = int(rays.max()) + 1 if len(rays) else 0
    return torch.stack(pack_ids(rays, n_rays), -1).to(ray_indices.dtype)


def _pack_of(packed_info: Tensor | None, ray_indices: Tensor | None, n_rays: int | None = None) -> Pack | None:
    """The pack that `packed_info` or `ray_indices` describes; None for batched samples, where both are None.

    Without `n_rays`, each run of equal indices is a ray, in any order. The pack then has as many rays as samples, with
    the empty ones last: to count the runs would wait for the device.
    """
    if packed_info is not None:
        if ray_indices is not None:
            raise ConfigError("Pass one of `packed_info` and the indices of rays, not both.")
        return _pack_in(packed_info)
    if ray_indices is None:
        return None
    if n_rays is not None:
        return pack_ids(ray_indices, n_rays)
    checks.integers("ray_indices", ray_indices, ray_indices.device)
    checks.present(ray_indices=ray_indices)
    run = torch.zeros_like(ray_indices, dtype=torch.int64)
    run[1:] = (ray_indices[1:] != ray_indices[:-1]).cumsum(0)
    return pack_counts(torch.zeros_like(run).index_add_(0, run, torch.ones_like(run)))


def _pack_in(packed_info: Tensor) -> Pack:
    """The pack in the two columns of `packed_info` [R, 2]."""
    if packed_info.ndim != 2 or packed_info.shape[1] != 2:
        raise ConfigError(f"`packed_info` must have shape [R, 2], got {list(packed_info.shape)}.")
    first, count = (checks.integers("packed_info", column, packed_info.device) for column in packed_info.unbind(-1))
    return Pack(first, count)

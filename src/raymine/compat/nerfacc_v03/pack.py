"""`nerfacc.pack`: which samples belong to which ray."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.compat.nerfacc.pack import pack_info as pack_info_long
from raymine.compat.nerfacc_v03._arguments import check_range, indices, packed, whole
from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.toolkit.pack import pack_counts


def pack_data(data: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Data (n_rays, n_samples, D) where mask (n_rays, n_samples) is True -> (all_samples, D), packed_info (n_rays, 2).

    packed_info is int32: first sample of each ray and its number of samples. Differentiable in data.
    """
    if data.ndim != 3:
        raise ConfigError(f"`data` must have shape [R, n, D], got {list(data.shape)}.")
    checks.shapes((("mask", mask, data.shape[:2]),), data.device)
    if mask.dtype is not torch.bool:
        raise ConfigError(f"`mask` must be bool, got {mask.dtype}.")
    return data[mask], torch.stack(pack_counts(mask.sum(-1)), -1).int()


@torch.no_grad()
def pack_info(ray_indices: Tensor, n_rays: int | None = None) -> Tensor:
    """packed_info (n_rays, 2) int32 of samples with ray_indices (n_samples,). Not differentiable.

    n_rays: the number of rays. Without it, the largest index plus one, which waits for the device.
    """
    ray_indices = indices(ray_indices, len(ray_indices) if ray_indices.ndim else 0, ray_indices)
    if n_rays is None:
        n_rays = int(ray_indices.max()) + 1 if len(ray_indices) else 0
    n_rays = whole("n_rays", n_rays)
    check_range(ray_indices, n_rays)
    return pack_info_long(ray_indices, n_rays).int()


@torch.no_grad()
def unpack_info(packed_info: Tensor, n_samples: int) -> Tensor:
    """ray_indices (n_samples,) int64 of packed_info (n_rays, 2), whose rays have `n_samples` samples together.

    Not differentiable.
    """
    first, count = packed(packed_info)
    n_samples = whole("n_samples", n_samples)
    _, count = checks.pack(first, count, n_samples, count.device)
    return pack_counts(count).ray_id(n_samples)


def unpack_data(packed_info: Tensor, data: Tensor, n_samples: int | None = None) -> Tensor:
    """Packed data (all_samples, D) -> (n_rays, n_samples, D), with zeros behind the samples of a ray.

    n_samples: at least the number of samples of every ray. Without it, the largest number, which waits for the device.
    On CUDA, further samples of a ray are left out. Differentiable in data.
    """
    if data.ndim != 2:
        raise ConfigError(f"`data` must have shape [all_samples, D], got {list(data.shape)}.")
    first, count = packed(packed_info, data)
    first, count = checks.ranges(first, count, len(data), data.device)
    most = int(count.max()) if len(count) and (n_samples is None or checks.readable(count)) else 0
    n_samples = most if n_samples is None else whole("n_samples", n_samples)
    if most > n_samples:
        raise ConfigError(f"`n_samples` must be at least {most}, the samples of the longest ray, got {n_samples}.")
    if not len(data):
        return data.new_zeros(len(count), n_samples, data.shape[1])
    rank = torch.arange(n_samples, device=data.device)
    rows = (first[:, None] + rank).clamp(0, len(data) - 1)
    return torch.where((rank < count[:, None])[..., None], data[rows], data.new_zeros(()))

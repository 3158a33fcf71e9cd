"""Which samples belong to which ray: rays of different lengths in one flat array.

The B samples of R rays lie ray by ray, in order along each. A `Pack` says where each ray begins and how many samples it
has; a ray may have none.

What can be checked without waiting for a device is: on a CPU counts must not be negative and ids must ascend and be in
range; elsewhere the caller answers for it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError


class Pack(NamedTuple):
    """first, count [R] int64: ray r has the samples first[r] .. first[r] + count[r] - 1; rays lie end to end."""

    first: Tensor
    count: Tensor  # type: ignore[assignment]  # shadows a method of tuple

    @property
    def n_rays(self) -> int:
        return self.first.shape[0]

    def ray_id(self, n_samples: int | None = None) -> Tensor:
        """[B] int64: the ray of each sample. On CUDA this waits for B, unless the caller knows it and passes it."""
        if n_samples is not None:
            place = torch.arange(n_samples, device=self.count.device)
            # The rays that end at or before a sample are those in front of its own.
            return torch.searchsorted(self.first + self.count, place, right=True).clamp_max(max(self.n_rays - 1, 0))
        return torch.repeat_interleave(torch.arange(self.n_rays, device=self.count.device), self.count)


def pack_counts(count: Tensor) -> Pack:
    """The pack of rays with count [R] samples each."""
    if count.ndim != 1 or count.is_floating_point():
        raise ConfigError(f"`count` must be integers of shape [R], got {count.dtype} of shape {list(count.shape)}.")
    count = count.long()
    if count.device.type == "cpu" and len(count) and int(count.min()) < 0:
        raise ConfigError(f"`count` must not be negative, got {int(count.min())}.")
    return Pack(count.cumsum(0) - count, count)


def pack_ids(ray_id: Tensor, n_rays: int) -> Pack:
    """The pack of samples whose rays are ray_id [B], ascending, each in 0 .. n_rays - 1."""
    if ray_id.ndim != 1 or ray_id.is_floating_point():
        raise ConfigError(f"`ray_id` must be integers of shape [B], got {ray_id.dtype} of shape {list(ray_id.shape)}.")
    if n_rays < 0:
        raise ConfigError(f"`n_rays` must not be negative, got {n_rays}.")
    if ray_id.device.type == "cpu" and len(ray_id):
        if bool((ray_id[1:] < ray_id[:-1]).any()):
            raise ConfigError("`ray_id` must ascend, since the samples of a ray lie together. Sort the samples by ray.")
        if int(ray_id[0]) < 0 or int(ray_id[-1]) >= n_rays:
            raise ConfigError(
                f"`ray_id` must be in 0 .. {n_rays - 1}, got {int(ray_id[0])} .. {int(ray_id[-1])}. "
                f"`n_rays` is the number of all rays, those without samples included."
            )
    ones = torch.ones_like(ray_id, dtype=torch.int64)
    return pack_counts(torch.zeros(n_rays, dtype=torch.int64, device=ray_id.device).index_add_(0, ray_id.long(), ones))

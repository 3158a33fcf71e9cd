"""Packed samples: rays of different lengths in one flat array. Every op that works along rays takes or returns these.

The B samples of R rays lie ray by ray, in order along each. A `Pack` is the layout alone: where each ray begins and how
many samples it has; a ray may have none. `Samples` are intervals along rays together with their layout.

What can be checked without waiting for a device is: on a CPU counts must not be negative and ids must ascend and be in
range; elsewhere the caller answers for it.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Samples:
    """Packed intervals along rays: t_start, t_end [B] float; ray_id [B], first [R], count [R] int64.

    Rays lie end to end: first[0] = 0, first[r + 1] = first[r] + count[r], and every sample belongs to a ray.
    """

    t_start: Tensor
    t_end: Tensor
    ray_id: Tensor
    first: Tensor
    count: Tensor

    def __len__(self) -> int:
        return self.t_start.shape[0]

    @property
    def n_rays(self) -> int:
        return self.first.shape[0]

    @property
    def pack(self) -> Pack:
        """The layout without the intervals."""
        return Pack(self.first, self.count)

    @classmethod
    def from_pack(cls, t_start: Tensor, t_end: Tensor, pack: Pack) -> Samples:
        """Intervals t_start, t_end [B] in the layout `pack`, which gives each its ray. Does not wait for a device."""
        return cls(t_start, t_end, pack.ray_id(t_start.shape[0]), *pack)

    def to(self, device: torch.device | str) -> Samples:
        """The same on another device."""
        rows = (self.t_start, self.t_end, self.ray_id, self.first, self.count)
        return Samples(*(row.to(device) for row in rows))


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

"""Which samples belong to which ray: rays of different lengths in one flat array.

The B samples of R rays lie ray by ray, in order along each. A `Pack` says where each ray begins and how many samples it
has; a ray may have none.
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

    def ray_id(self) -> Tensor:
        """[B] int64: the ray of each sample."""
        return torch.repeat_interleave(torch.arange(self.n_rays, device=self.count.device), self.count)


def pack_counts(count: Tensor) -> Pack:
    """The pack of rays with count [R] samples each."""
    if count.ndim != 1 or count.is_floating_point():
        raise ConfigError(f"`count` must be integers of shape [R], got {count.dtype} of shape {list(count.shape)}.")
    count = count.long()
    return Pack(count.cumsum(0) - count, count)


def pack_ids(ray_id: Tensor, n_rays: int) -> Pack:
    """The pack of samples whose rays are ray_id [B], ascending, each in 0 .. n_rays - 1."""
    if ray_id.ndim != 1 or ray_id.is_floating_point():
        raise ConfigError(f"`ray_id` must be integers of shape [B], got {ray_id.dtype} of shape {list(ray_id.shape)}.")
    ones = torch.ones_like(ray_id, dtype=torch.int64)
    return pack_counts(torch.zeros(n_rays, dtype=torch.int64, device=ray_id.device).index_add_(0, ray_id.long(), ones))

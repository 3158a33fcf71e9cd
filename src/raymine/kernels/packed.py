"""Packed samples: rays with different numbers of samples in one flat array. All ops along rays use this layout.

The B samples of R rays are stored ray by ray, in order along each ray. A `Pack` is only the layout: the first sample of
each ray and its number of samples, which may be 0. `Samples` are intervals along rays with their layout.

Values are checked as `checks` says: counts must not be negative, and ray ids must be sorted and in range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks


class Pack(NamedTuple):
    """first, count [R] int64: ray r has the samples first[r] .. first[r] + count[r] - 1.

    Rays follow one another without gaps: first[0] = 0 and first[r + 1] = first[r] + count[r].
    """

    first: Tensor
    count: Tensor  # type: ignore[assignment]  # shadows a method of tuple

    @property
    def n_rays(self) -> int:
        """R, the number of rays, including those without samples."""
        return self.first.shape[0]

    def ray_id(self, n_samples: int | None = None) -> Tensor:
        """[B] int64: the ray of each sample.

        n_samples: B. Without it, this waits for a CUDA device to learn B.
        """
        if n_samples is not None:
            place = torch.arange(n_samples, device=self.count.device)
            # The ray of a sample equals the number of rays that end at or before the sample.
            return torch.searchsorted(self.first + self.count, place, right=True).clamp_max(max(self.n_rays - 1, 0))
        return torch.repeat_interleave(torch.arange(self.n_rays, device=self.count.device), self.count)


@dataclass(frozen=True)
class Samples:
    """Packed intervals along rays: t_start, t_end [B] float distances; ray_id [B], first [R], count [R] int64.

    Rays follow one another without gaps: first[0] = 0, first[r + 1] = first[r] + count[r]. Every sample has a ray.
    """

    t_start: Tensor
    t_end: Tensor
    ray_id: Tensor
    first: Tensor
    count: Tensor

    def __post_init__(self) -> None:
        for name, part, like in (
            ("t_start", self.t_start, self.t_start),
            ("t_end", self.t_end, self.t_start),
            ("ray_id", self.ray_id, self.t_start),
            ("first", self.first, self.first),
            ("count", self.count, self.first),
        ):
            if part.ndim != 1 or part.shape != like.shape:
                length = "B" if like is self.t_start else "R"
                raise ConfigError(
                    f"`{name}` must have shape [{length}], got {list(part.shape)}; `t_start` has "
                    f"{list(self.t_start.shape)} and `first` {list(self.first.shape)}."
                )

    def __len__(self) -> int:
        return self.t_start.shape[0]

    @property
    def n_rays(self) -> int:
        """R, the number of rays, including those without samples."""
        return self.first.shape[0]

    @property
    def pack(self) -> Pack:
        """The layout without the intervals."""
        return Pack(self.first, self.count)

    @classmethod
    def from_pack(cls, t_start: Tensor, t_end: Tensor, pack: Pack) -> Samples:
        """Samples from intervals t_start, t_end [B] and their layout. Does not wait for a device."""
        return cls(t_start, t_end, pack.ray_id(t_start.shape[0]), *pack)

    def to(self, device: torch.device | str) -> Samples:
        """The same on another device."""
        rows = (self.t_start, self.t_end, self.ray_id, self.first, self.count)
        return Samples(*(row.to(device) for row in rows))


def pack_counts(count: Tensor) -> Pack:
    """The pack of R rays with count [R] samples each. count: integers, not negative."""
    count = checks.counts(count, count.device)
    return Pack(count.cumsum(0) - count, count)


def pack_ids(ray_id: Tensor, n_rays: int) -> Pack:
    """The pack of samples whose rays are ray_id [B]: integers in 0 .. n_rays - 1 in ascending order."""
    ray_id = checks.integers("ray_id", ray_id, ray_id.device)
    if not 0 <= n_rays < 2**31:
        raise ConfigError(f"`n_rays` must be in 0 .. 2^31 - 1, got {n_rays}.")
    if checks.readable(ray_id) and len(ray_id):
        if bool((ray_id[1:] < ray_id[:-1]).any()):
            raise ConfigError("`ray_id` must ascend, since the samples of a ray lie together. Sort the samples by ray.")
        if int(ray_id[0]) < 0 or int(ray_id[-1]) >= n_rays:
            raise ConfigError(
                f"`ray_id` must be in 0 .. {n_rays - 1}, got {int(ray_id[0])} .. {int(ray_id[-1])}. "
                f"`n_rays` is the number of all rays, those without samples included."
            )
    ones = torch.ones_like(ray_id, dtype=torch.int64)
    return pack_counts(torch.zeros(n_rays, dtype=torch.int64, device=ray_id.device).index_add_(0, ray_id, ones))

"""Random valid arguments that several modules of fuzz cases share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from raymine.kernels.packed import Samples
from support.fuzz import Args, Size


def rand(rng: torch.Generator, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(*shape, generator=rng)


def packed_rays(rng: torch.Generator, size: Size) -> Args:
    """first, count of rays with all samples of a size together; some rays have none."""
    rays = torch.randint(0, max(size.rays, 1), (size.samples,), generator=rng)
    count = torch.bincount(rays, minlength=size.rays)[: size.rays] if size.rays else rays.new_zeros(0)
    return {"first": count.cumsum(0) - count, "count": count}


def intervals(rng: torch.Generator, size: Size) -> Args:
    start = rand(rng, size.samples, low=0.5, high=2.0)
    return {"t_start": start, "t_end": start + rand(rng, size.samples, low=0.01, high=0.3), **packed_rays(rng, size)}


def samples_of(t_start: Tensor, t_end: Tensor, first: Tensor, count: Tensor) -> Samples:
    """The ops read no `ray_id`, so it is any tensor of the right shape."""
    return Samples(t_start, t_end, torch.zeros(t_start.shape, dtype=torch.int64, device=t_start.device), first, count)


def only(make: Any, *names: str, **more: Any) -> Any:
    """Some of the arguments that `make` makes, and plain numbers."""
    return lambda rng, size: {**{name: value for name, value in make(rng, size).items() if name in names}, **more}

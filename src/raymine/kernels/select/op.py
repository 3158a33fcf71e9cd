"""Compaction of packed samples: checks and dispatch. Not differentiable."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks, dispatch
from raymine.kernels.select import reference


class Compacted(NamedTuple):
    """Kept samples: index [b] int64 of the kept samples, ascending; first, count [R] int64: their layout."""

    index: Tensor  # type: ignore[assignment]  # shadows a method of tuple
    first: Tensor
    count: Tensor  # type: ignore[assignment]  # shadows a method of tuple


def compact(keep: Tensor, count: Tensor) -> Compacted:
    """Keep the samples where `keep` [B] bool is True. count [R] integers: samples of each ray before; they sum to B."""
    if keep.dtype != torch.bool or keep.ndim != 1:
        raise ConfigError(f"`keep` must be a bool tensor of shape [B], got {keep.dtype} of shape {list(keep.shape)}.")
    count = checks.counts(count, keep.device, keep.shape[0])
    backend = dispatch.choose("select", keep.device)
    if backend == "reference":
        index, kept = reference.compact(keep, count)
    else:
        with dispatch.kernel_lock:
            index, kept = dispatch.kernels("select", backend).compact(keep, count)
    return Compacted(index, kept.cumsum(0) - kept, kept)

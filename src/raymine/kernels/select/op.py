"""Compaction of packed samples: checks and dispatch. Not differentiable."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.select import reference


class Compacted(NamedTuple):
    """Kept samples: index [b] int64 of the kept samples, ascending; first, count [R] int64: their layout."""

    index: Tensor  # type: ignore[assignment]  # shadows a method of tuple
    first: Tensor
    count: Tensor  # type: ignore[assignment]  # shadows a method of tuple


def compact(keep: Tensor, count: Tensor) -> Compacted:
    """Keep the samples where `keep` [B] bool is True. count [R] int64: samples of each ray before; they sum to B."""
    if keep.dtype != torch.bool or keep.ndim != 1:
        raise ConfigError(f"`keep` must be a bool tensor of shape [B], got {keep.dtype} of shape {list(keep.shape)}.")
    # On a GPU this check would wait for the device, so the caller is responsible.
    if count.device.type == "cpu" and int(count.sum()) != keep.shape[0]:
        raise ConfigError(f"`count` must sum to the {keep.shape[0]} samples of `keep`, got {int(count.sum())}.")
    backend = dispatch.choose("select", keep.device)
    if backend == "cpu":
        from raymine.kernels.select import cpu

        with dispatch.kernel_lock:
            index, kept = cpu.compact(keep, count)
    elif backend == "gpu":
        from raymine.kernels.select import gpu

        index, kept = gpu.compact(keep, count)
    else:
        index, kept = reference.compact(keep, count)
    return Compacted(index, kept.cumsum(0) - kept, kept)

"""Compaction of packed samples: which rows survive, and how many of each ray. Not differentiable."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.select import reference


class Compacted(NamedTuple):
    """index [b] int64 ascending; first, count [R] int64 of the surviving samples."""

    index: Tensor  # type: ignore[assignment]  # shadows a method of tuple
    first: Tensor
    count: Tensor  # type: ignore[assignment]  # shadows a method of tuple


def compact(keep: Tensor, count: Tensor) -> Compacted:
    """Keep the samples where `keep` [B] is true; `count` [R] is how many samples each ray has now (they sum to B)."""
    if keep.dtype != torch.bool or keep.ndim != 1:
        raise ConfigError(f"`keep` must be a bool tensor of shape [B], got {keep.dtype} of shape {list(keep.shape)}.")
    # On a GPU this would wait for the device, and the caller answers for it.
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

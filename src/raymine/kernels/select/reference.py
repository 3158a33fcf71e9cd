"""Compaction in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def compact(keep: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """keep [B] bool, count [R] -> index [b] int64 of the kept samples, ascending; kept samples of each ray [R]."""
    ray_id = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
    kept = torch.zeros_like(count).index_add(0, ray_id, keep.to(count.dtype))
    return keep.nonzero()[:, 0], kept

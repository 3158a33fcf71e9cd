"""The samples of a ray in Triton kernels, clamped to the samples that exist (see `checks`)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def ray_bounds(first, count, r, samples):
    """First sample of ray r and its number of samples, clamped so that they lie in 0 .. samples - 1.

    The clamp changes no sound ray. It prevents access outside of the samples if a pack is wrong; a check on the host
    would have to wait for the device. Nothing can overflow, because `first` is clamped before it is subtracted.
    """
    begin = tl.minimum(tl.maximum(tl.load(first + r), 0), samples)
    return begin, tl.minimum(tl.maximum(tl.load(count + r), 0), samples - begin)


def clamped(first: Tensor, count: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """As `ray_bounds`, for all rays, by torch: for kernels of the fused step, which makes its packs itself."""
    begin = first.clamp(0, samples)
    return begin, torch.minimum(count.clamp_min(0), samples - begin)

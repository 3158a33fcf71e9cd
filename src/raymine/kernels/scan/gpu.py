"""Running sums and products in Triton: a program processes one channel of a ray after another, in chunks of samples.

Samples are read in the order of the scan, so one kernel handles both directions. An exclusive scan is an inclusive scan
of the values shifted by one place. So nothing is subtracted, and an infinite value stays infinite behind its sample.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from raymine.kernels._triton import programs
from raymine.kernels.gpu_bounds import ray_bounds

CHUNK = 32


@triton.jit
def _then(scale, offset, next_scale, next_offset):
    """Composition of two linear maps: x -> scale x + offset, then x -> next_scale x + next_offset."""
    return scale * next_scale, offset * next_scale + next_offset


@triton.jit(do_not_specialize=["n", "samples"])
def _scan(
    values, first, count, n, samples, channels, out,
    PRODUCT: tl.constexpr, EXCLUSIVE: tl.constexpr, REVERSE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    neutral: tl.constexpr = 1.0 if PRODUCT else 0.0
    kind: tl.constexpr = values.dtype.element_ty
    lane = tl.arange(0, CHUNK)
    for task in range(tl.program_id(0), n * channels, tl.num_programs(0)):
        c = task % channels
        begin, length = ray_bounds(first, count, task // channels, samples)
        end = begin + length
        carry = tl.full([], neutral, kind)
        for s in range(0, length, CHUNK):
            along = s + lane
            live = along < length
            i = (end - 1 - along) if REVERSE else (begin + along)
            source = i
            known = live
            if EXCLUSIVE:
                source = (i + 1) if REVERSE else (i - 1)
                known = live & (along > 0)
            x = tl.load(values + source * channels + c, mask=known, other=neutral)
            y = carry * tl.cumprod(x, 0) if PRODUCT else carry + tl.cumsum(x, 0)
            tl.store(out + i * channels + c, y, mask=live)
            carry = tl.sum(tl.where(lane == CHUNK - 1, y, 0.0))


@triton.jit(do_not_specialize=["n", "samples"])
def _product_gradient(
    values, before, grad, first, count, n, samples, channels, out, EXCLUSIVE: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Gradient of a running product, back to front: rest_i = g_i + x_{i+1} rest_{i+1} (see `op.running_product`).

    If EXCLUSIVE, g_{i+1} replaces g_i. The recurrence is computed as a scan of linear maps.
    """
    kind: tl.constexpr = values.dtype.element_ty
    lane = tl.arange(0, CHUNK)
    for task in range(tl.program_id(0), n * channels, tl.num_programs(0)):
        c = task % channels
        begin, length = ray_bounds(first, count, task // channels, samples)
        end = begin + length
        behind = tl.full([], 0.0, kind)
        for s in range(0, length, CHUNK):
            along = s + lane
            live = along < length
            followed = live & (along > 0)
            at = (end - 1 - along) * channels + c
            factor = tl.load(values + at + channels, mask=followed, other=1.0)
            if EXCLUSIVE:
                g = tl.load(grad + at + channels, mask=followed, other=0.0)
            else:
                g = tl.load(grad + at, mask=live, other=0.0)
            # The first sample of a chunk takes the result of the chunk behind it.
            g += tl.where(lane == 0, factor * behind, 0.0)
            _, rest = tl.associative_scan((factor, g), 0, _then)
            tl.store(out + at, tl.load(before + at, mask=live, other=0.0) * rest, mask=live)
            behind = tl.sum(tl.where(lane == CHUNK - 1, rest, 0.0))


def scan(
    values: Tensor, first: Tensor, count: Tensor, product: bool, exclusive: bool, reverse: bool, fill: float
) -> Tensor:
    """As `reference.scan`, without a graph."""
    out = torch.full(values.shape, fill, dtype=values.dtype, device=values.device)
    if len(first) and values.numel():
        inputs = (part.detach().contiguous() for part in (values, first, count))
        _scan[(programs(values.device, 32),)](
            *inputs, len(first), len(values), values.shape[1], out,
            PRODUCT=product, EXCLUSIVE=exclusive, REVERSE=reverse, CHUNK=CHUNK, num_warps=1,
        )  # fmt: skip
    return out


def product_gradient(
    values: Tensor, before: Tensor, grad: Tensor, first: Tensor, count: Tensor, exclusive: bool
) -> Tensor:
    """As `cpu.product_gradient`."""
    out = torch.zeros(values.shape, dtype=values.dtype, device=values.device)
    if len(first) and values.numel():
        inputs = (part.detach().contiguous() for part in (values, before, grad, first, count))
        _product_gradient[(programs(values.device, 32),)](
            *inputs, len(first), len(values), values.shape[1], out, EXCLUSIVE=exclusive, CHUNK=CHUNK, num_warps=1
        )
    return out

"""The op `resample` in Triton: one program per ray, one lane per new edge, binary search in the CDF."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from raymine.kernels._triton import power_of_two

TINY = tl.constexpr(torch.finfo(torch.float32).tiny)


@triton.jit
def _cdf(edges, cdfs, i, uneven):
    """The CDF of a ray at its edges i; the edges themselves where the ray is not `uneven`."""
    return tl.where(uneven, tl.load(cdfs + i), tl.load(edges + i))


@triton.jit
def _sample(edges, cdfs, uneven, k, offset, start, step, last, ROUNDS: tl.constexpr):
    """Samples [BLOCK] with the indices k [BLOCK] of one ray; edges and cdfs point at its first edge."""
    u = start + (k.to(tl.float32) + offset) * step
    # The number of entries, the last one left out, that are not above u. NaN counts as larger than everything.
    low = tl.zeros_like(k)
    high = tl.zeros_like(k) + last
    for _ in range(ROUNDS):
        middle = (low + high) >> 1
        up = (low < high) & ~(_cdf(edges, cdfs, middle, uneven) > u)
        low, high = tl.where(up, middle + 1, low), tl.where(up, high, tl.maximum(low, middle))
    left, right = tl.maximum(low - 1, 0), low
    c0, c1 = _cdf(edges, cdfs, left, uneven), _cdf(edges, cdfs, right, uneven)
    t0, t1 = tl.load(edges + left), tl.load(edges + right)
    rise = c1 - c0
    rises = rise > 0
    flat = tl.where(u > c1, 1.0, tl.where(u + rise == u + rise, 0.5, float("nan")))
    share = tl.where(rises, (u - c0) / tl.where(rises, rise, 1.0), flat)
    share = tl.where(share < 0, 0.0, tl.where(share > 1, 1.0, share))
    between = t0 + share * (t1 - t0)
    return tl.where(share < 1, tl.where(between < t1, between, t1), t1 + 0 * share)


@triton.jit(do_not_specialize=["last", "n"])
def _resample(
    edges, cdfs, offset, last, n, new_edges, samples, ROUNDS: tl.constexpr, OLD: tl.constexpr, NEW: tl.constexpr
):  # fmt: skip
    """last: index of a ray's last edge. OLD and NEW: powers of two above the numbers of old and new edges."""
    ray = tl.program_id(0).to(tl.int64)
    edges += ray * (last + 1)
    cdfs += ray * (last + 1)
    old = tl.arange(0, OLD)
    values = tl.load(cdfs + old, mask=old <= last, other=0.0)
    wrong = tl.max(tl.where(tl.abs(values) < float("inf"), 0, 1), 0)
    begin, end = tl.load(cdfs), tl.load(cdfs + last)
    uneven = (wrong == 0) & (end > begin + TINY)
    near, far = tl.load(edges), tl.load(edges + last)
    start = tl.where(uneven, begin, near)
    step = (tl.where(uneven, end, far) - start) / n
    moved = tl.load(offset + ray)
    # New edge j lies between samples j - 1 and j. The outermost ones mirror the neighbouring edge about a sample.
    j = tl.arange(0, NEW)
    first, final = j == 0, j >= n
    most = tl.maximum(n - 1, 0)
    a = tl.where(first, tl.minimum(1, most), tl.where(final, tl.maximum(n - 2, 0), j - 1))
    b = tl.where(final, most, j)
    sample_a = _sample(edges, cdfs, uneven, a, moved, start, step, last, ROUNDS)
    sample_b = _sample(edges, cdfs, uneven, b, moved, start, step, last, ROUNDS)
    opening = sample_b - (sample_a - sample_b) * 0.5
    opening = tl.where((opening < near) | (n == 1), near, opening)
    closing = sample_b + (sample_b - sample_a) * 0.5
    closing = tl.where((closing > far) | (n == 1), far, closing)
    edge = tl.where(first, opening, tl.where(final, closing, (sample_a + sample_b) * 0.5))
    tl.store(new_edges + ray * (n + 1) + j, edge, mask=j <= n)
    tl.store(samples + ray * n + j, sample_b, mask=j < n)


def resample(edges: Tensor, cdfs: Tensor, offset: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """See `reference.resample`. float32; every ray has at least one edge."""
    edges, cdfs, offset = edges.contiguous(), cdfs.contiguous(), offset.contiguous()
    rays, last = edges.shape[:-1], edges.shape[-1] - 1
    new_edges, samples = edges.new_empty(*rays, n + 1), edges.new_empty(*rays, n)
    if rays.numel():
        _resample[(rays.numel(),)](
            edges, cdfs, offset, last, n, new_edges, samples,
            ROUNDS=max(1, last.bit_length()), OLD=power_of_two(last + 1), NEW=power_of_two(n + 1), num_warps=2,
        )  # fmt: skip
    return new_edges, samples

"""What the ranks of a run do with their messages in a fused step: each kernel in place of a dozen launches of torch.

message [8 + W] float64: the sums of `judge`, then how many samples each of the W ranks has. Ranks fill in their own
parts, and the sum over all ranks is the whole.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rank", "world"])
def keep_own(rays, wanted, n_rays, rank, world, BLOCK: tl.constexpr):
    """Of rays [R, 8] and wanted [R, 8], leave those of other ranks without length (far = near) and without weight."""
    n = tl.load(n_rays).to(tl.int64)
    row = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    other = (row < n) & ((row < n * rank // world) | (row >= n * (rank + 1) // world))
    tl.store(rays + row * 8 + 7, tl.load(rays + row * 8 + 6, mask=other), mask=other)
    tl.store(wanted + row * 8 + 6, row * 0.0, mask=other)


@triton.jit(do_not_specialize=["programs", "rank", "world"])
def pack(sums, programs, n_samples, message, rank, world, SUMS: tl.constexpr, WORLD: tl.constexpr):
    """message = the own part of it. sums [programs, 8] float32; n_samples [1]. SUMS, WORLD: powers of two above."""
    p, k = tl.arange(0, SUMS), tl.arange(0, 8)
    each = tl.load(sums + p[:, None] * 8 + k[None, :], mask=(p < programs)[:, None], other=0.0)
    tl.store(message + k, tl.sum(each.to(tl.float64), 0))
    r = tl.arange(0, WORLD)
    tl.store(message + 8 + r, tl.where(r == rank, tl.load(n_samples), 0).to(tl.float64), mask=r < world)


@triton.jit(do_not_specialize=["rank", "world"])
def unpack(message, rank, world, sums, n_samples, first, WORLD: tl.constexpr):
    """From the whole message: sums [8] float32, the samples of all ranks [1], and those of the ranks before [1]."""
    k, r = tl.arange(0, 8), tl.arange(0, WORLD)
    tl.store(sums + k, tl.load(message + k).to(tl.float32))
    counts = tl.load(message + 8 + r, mask=r < world, other=0.0).to(tl.int32)
    tl.store(n_samples, tl.sum(counts))
    tl.store(first, tl.sum(tl.where(r < rank, counts, 0)))


@triton.jit
def join_counts(n_marched, n_chosen, n_lost, out):
    """out [3] = the three counts."""
    tl.store(out, tl.load(n_marched))
    tl.store(out + 1, tl.load(n_chosen))
    tl.store(out + 2, tl.load(n_lost))

"""Choosing samples in Triton.

`select` is Poisson sampling. It runs twice: once to count the samples that are taken, once to write them in order. The
other sampling schemes need all samples at once, for a running sum or a sort; `keys` computes what they sum or sort.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from raymine.kernels.philox.gpu import uniform


@triton.jit
def select(
    size, n_samples, first, control, seed, step, counts, chosen, index, weight,
    WRITE: tl.constexpr, STREAM: tl.constexpr, HARD: tl.constexpr, UNBIASED: tl.constexpr, EVERY: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Poisson sampling: take each sample with probability min(1, control[0] * size); control[0] is b / sum of sizes.

    HARD=False takes every sample of positive size instead, and EVERY takes all samples. UNBIASED: the weight of a
    sample is 1 / probability, otherwise 1. first [1]: the draw for sample i goes by first + i.

    WRITE=False counts the taken samples of each block into counts [blocks]. WRITE=True adds up the counts of the blocks
    before each, and writes index, weight [b] and chosen [1] = b.
    """
    n = tl.load(n_samples)
    block = tl.program_id(0)
    if block * BLOCK >= n:
        if WRITE:
            tl.store(chosen, 0, mask=n == 0)
        return
    i = block * BLOCK + tl.arange(0, BLOCK)
    live = i < n
    value = tl.load(size + i, mask=live, other=0.0)
    if EVERY:
        taken = live
        chance = value * 0 + 1.0
    elif HARD:
        chance = tl.minimum(value * tl.load(control), 1.0)
        number = uniform(tl.load(seed), tl.load(seed + 1), tl.load(step), STREAM, tl.load(first) + i)
        taken = live & (number < chance)
    else:
        taken = live & (value > 0)
        chance = value * 0 + 1.0
    ones = taken.to(tl.int32)
    if WRITE:
        before = 0
        for start in range(0, block, BLOCK):
            other = start + tl.arange(0, BLOCK)
            before += tl.sum(tl.load(counts + other, mask=other < block, other=0))
        if (block + 1) * BLOCK >= n:
            tl.store(chosen, before + tl.sum(ones))
        place = before + tl.cumsum(ones, 0) - 1
        tl.store(index + place, i, mask=taken)
        tl.store(weight + place, 1.0 / tl.maximum(chance, 1e-30) if UNBIASED else chance * 0 + 1.0, mask=taken)
    else:
        tl.store(counts + block, tl.sum(ones))


@triton.jit
def keys(
    size, n_samples, control, wanted, seed, step, out,
    STREAM: tl.constexpr, RACE: tl.constexpr, LARGEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out [capacity] float64; symbols as in `mining.draw`. wanted [1]: b.

    RACE: the keys of the race (`multinomial`). LARGEST: -p (`topk`). Both are infinite where p is 0. Otherwise
    (`systematic`): min(1, b p) of each sample, plus the random offset of the draw for sample 0.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < tl.load(n_samples)
    chance = tl.load(size + i, mask=live, other=0.0) * tl.load(control)
    number = uniform(tl.load(seed), tl.load(seed + 1), tl.load(step), STREAM, i)
    if RACE or LARGEST:
        p = (chance / tl.maximum(tl.load(wanted), 1e-30)).to(tl.float64)
        key = -tl.log(1.0 - number.to(tl.float64)) / tl.where(p > 0, p, 1.0) if RACE else -p
        tl.store(out + i, tl.where(p > 0, key, float("inf")))
    else:
        tl.store(out + i, tl.minimum(chance, 1.0).to(tl.float64) + tl.where(i == 0, number, 0.0))


@triton.jit(do_not_specialize=["n"])
def _put(keep, running, index, n, BLOCK: tl.constexpr):
    """index [b]: the positions where keep [n] is not 0. running [n]: the inclusive running sum of `keep`."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = (i < n) & (tl.load(keep + i, mask=i < n, other=0) != 0)
    tl.store(index + tl.load(running + i, mask=kept, other=1) - 1, i.to(tl.int64), mask=kept)


def compact(keep: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """As `reference.compact`."""
    n = keep.shape[0]
    running = torch.cat((keep.new_zeros(1, dtype=torch.int32), keep.cumsum(0, dtype=torch.int32)))
    # Clamped, so that a wrong count cannot index outside of `running` (see `kernels.checks`).
    ends = count.cumsum(0)
    kept = running[ends.clamp(0, n)] - running[(ends - count).clamp(0, n)]
    index = torch.empty(int(running[-1]), dtype=torch.int64, device=keep.device)
    if n:
        _put[(triton.cdiv(n, 1024),)](keep.contiguous().view(torch.uint8), running[1:], index, n, BLOCK=1024)
    return index, kept.to(count.dtype)

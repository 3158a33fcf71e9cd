"""Choosing samples in Triton. Which a Poisson draw takes is computed twice, to count them and to write them in order.

Draws that need all samples at once, by a running sum or by a sort, get here what they add up or sort by (`keys`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from raymine.kernels.philox.gpu import uniform


@triton.jit
def select(
    size, n_samples, control, seed, step, counts, chosen, index, weight,
    WRITE: tl.constexpr, STREAM: tl.constexpr, HARD: tl.constexpr, UNBIASED: tl.constexpr, EVERY: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Poisson draws: a sample is taken with chance min(1, control[0] * size), control[0] being b / sum of sizes.

    HARD: False takes all of positive size; EVERY: takes every sample. UNBIASED: weight 1 / chance, else 1.
    WRITE: False counts into counts [blocks], as far as there are samples; True adds up those of the blocks before each,
    and writes index, weight [b] and chosen [1], which is b.
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
        number = uniform(tl.load(seed), tl.load(seed + 1), tl.load(step), STREAM, i)
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
    """out [capacity] float64, symbols as in `mining.draw`; wanted [1]: b. RACE: keys of the race, LARGEST: -p, infinite
    where nothing can be taken; else the chance of each sample, with the draw's one number added to the first.
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
    """index [b]: the places where keep [n] is set; running [n]: how many are set up to each."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = (i < n) & (tl.load(keep + i, mask=i < n, other=0) != 0)
    tl.store(index + tl.load(running + i, mask=kept, other=1) - 1, i.to(tl.int64), mask=kept)


def compact(keep: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """As `reference.compact`."""
    n = keep.shape[0]
    running = torch.cat((keep.new_zeros(1, dtype=torch.int32), keep.cumsum(0, dtype=torch.int32)))
    ends = count.cumsum(0)
    kept = running[ends] - running[ends - count]
    index = torch.empty(int(running[-1]), dtype=torch.int64, device=keep.device)
    if n:
        _put[(triton.cdiv(n, 1024),)](keep.contiguous().view(torch.uint8), running[1:], index, n, BLOCK=1024)
    return index, kept.to(count.dtype)

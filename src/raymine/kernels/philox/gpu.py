"""Philox in Triton. Kernels compute random numbers where they need them, so that none are stored in memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def word(seed_low, seed_high, step, stream, index):
    """Random 32-bit word `index` (an integer tensor below 2^31) of a stream, as `reference.words` defines it."""
    at = index.to(tl.uint32)
    return word_of_block(seed_low, seed_high, step, stream, at >> 2, at * 0, at & 3)


@triton.jit
def word_of_block(seed_low, seed_high, step, stream, low, high, turn):
    """Word `turn` (0 .. 3) of block number low + 2^32 high; all three are uint32 tensors."""
    # Adding to an unsigned zero keeps the bits of signed arguments, and turns scalars into tensors.
    c0, c3 = low, high
    c1 = low * 0 + stream
    c2 = low * 0 + step
    k0 = low * 0 + seed_low
    k1 = low * 0 + seed_high
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(c0, c0 * 0 + 0xD2511F53), c0 * 0xD2511F53
        high1, low1 = tl.umulhi(c2, c2 * 0 + 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    return tl.where(turn < 2, tl.where(turn == 0, c0, c1), tl.where(turn == 2, c2, c3))


@triton.jit
def uniform(seed_low, seed_high, step, stream, index):
    """The high 24 bits of `word` as a float32 in [0, 1)."""
    return (word(seed_low, seed_high, step, stream, index) >> 8).to(tl.float32) * 5.9604644775390625e-8


@triton.jit
def below(word, high):
    """A 32-bit word as an integer in 0 .. high - 1: the high half of word * high."""
    return tl.umulhi(word, word * 0 + high).to(tl.int32)


@triton.jit(do_not_specialize=["seed_low", "seed_high", "step", "stream", "begin_low", "begin_high", "skip", "n"])
def _words(out, seed_low, seed_high, step, stream, begin_low, begin_high, skip, n, BLOCK: tl.constexpr):
    """out [n] int64: the words from word `skip` of the block begin_low + 2^32 begin_high on."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = (i + skip).to(tl.uint32)
    begin = at * 0 + begin_low
    low = begin + (at >> 2)
    high = at * 0 + begin_high + (low < begin).to(tl.uint32)
    found = word_of_block(seed_low, seed_high, step, stream, low, high, at & 3)
    tl.store(out + i, found.to(tl.int64), mask=i < n)


def words(seed: int, step: int, stream: int, n: int, device: torch.device, first: int = 0) -> Tensor:
    """As `reference.words`, for n below 2^31 - 4."""
    out = torch.empty(n, dtype=torch.int64, device=device)
    if n:
        begin, skip = divmod(first, 4)
        _words[(triton.cdiv(n, 1024),)](
            out, *halves(seed), signed(step), int(stream), *halves(begin), skip, n, BLOCK=1024
        )  # fmt: skip
    return out


def halves(number: int) -> tuple[int, int]:
    """The low and the high 32 bits of a 64-bit number, each as the int32 with the same bits."""
    return signed(number & 0xFFFFFFFF), signed((number >> 32) & 0xFFFFFFFF)


def signed(value: int) -> int:
    """A 32-bit word in 0 .. 2^32 - 1 as the int32 with the same bits."""
    return value - (1 << 32) if value >= 1 << 31 else value

"""Philox 4x32 with ten rounds (Salmon et al., 2011) in torch integer arithmetic: the definition.

The key (k0, k1) is the seed. The counter (c0, c1, c2, c3) is (block low, stream, step, block high). The number with
index i is word i % 4 of block i // 4. Products of two 32-bit words may overflow int64, but their 64 bits stay correct.
"""

from __future__ import annotations

import torch
from torch import Tensor

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF


def rounds(counter: Tensor, key: tuple[int, int]) -> Tensor:
    """Counters [n, 4] -> random words [n, 4]; both are 32-bit words in int64."""
    c0, c1, c2, c3 = counter.unbind(-1)
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK) ^ c1 ^ k0,
            p1 & _MASK,
            ((p0 >> 32) & _MASK) ^ c3 ^ k1,
            p0 & _MASK,
        )
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return torch.stack((c0, c1, c2, c3), -1)


def words(seed: int, step: int, stream: int, n: int, device: torch.device, first: int = 0) -> Tensor:
    """[n] int64: the random 32-bit words with indices first .. first + n - 1."""
    begin, skip = divmod(first, 4)
    block = torch.arange(begin, begin + (skip + n + 3) // 4, device=device, dtype=torch.int64)
    counter = torch.stack(
        (block & _MASK, torch.full_like(block, stream), torch.full_like(block, step), block >> 32), dim=-1
    )
    return rounds(counter, (seed & _MASK, (seed >> 32) & _MASK)).reshape(-1)[skip : skip + n]

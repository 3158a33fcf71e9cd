"""Philox on the CPU: one parallel pass over blocks of four words."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from raymine.kernels._numba import device_function, kernel, tasks


@device_function
def block(c0, c1, c2, c3, k0, k1):
    """One block of four random 32-bit words. Every argument is a uint64 that holds 32 bits."""
    mask = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    for _ in range(10):
        p0 = c0 * np.uint64(0xD2511F53)
        p1 = c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & mask, (p0 >> half) ^ c3 ^ k1, p0 & mask
        k0 = (k0 + np.uint64(0x9E3779B9)) & mask
        k1 = (k1 + np.uint64(0xBB67AE85)) & mask
    return c0, c1, c2, c3


@kernel
def _fill(seed, step, stream, begin, out, n_tasks):
    """out [n] int64: the words from the first word of block `begin` on."""
    mask = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    n = out.shape[0]
    blocks = (n + 3) // 4
    for task in numba.prange(n_tasks):
        for i in range(task * blocks // n_tasks, (task + 1) * blocks // n_tasks):
            u = begin + np.uint64(i)
            w = block(u & mask, stream, step, u >> half, seed & mask, seed >> half)
            for j in range(min(4, n - 4 * i)):
                out[4 * i + j] = np.int64(w[j])


def words(seed: int, step: int, stream: int, n: int, device: torch.device, first: int = 0) -> Tensor:
    """As `reference.words`."""
    begin, skip = divmod(first, 4)
    out = np.empty(skip + n, np.int64)
    key = np.uint64(seed & (2**64 - 1))
    _fill(key, np.uint64(step), np.uint64(stream), np.uint64(begin), out, tasks(skip + n, 2048))
    return torch.from_numpy(out[skip:])

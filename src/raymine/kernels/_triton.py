"""Sizes of launches: how many programs fill a device, and powers of two.

Kernels take counts as pointers and sizes as plain numbers that are not specialised, so that neither another scene nor
another number of samples compiles anything again. What is a `constexpr` is the shape of the model.
"""

from __future__ import annotations

from functools import cache

import torch


@cache
def programs(device: torch.device, each: int) -> int:
    """`each` programs for every multiprocessor of a CUDA device; 2 in the interpreter, where each costs time."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count * each


def power_of_two(n: int, least: int = 1) -> int:
    """The smallest power of two that is at least n and `least`."""
    return max(least, 1 << max(0, n - 1).bit_length())

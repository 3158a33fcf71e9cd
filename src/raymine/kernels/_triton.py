"""What all launches share: how many programs fill a device, powers of two, and compiling many kernels at once.

Kernels take counts as pointers and sizes as plain numbers that are not specialised, so that neither another scene nor
another number of samples compiles anything again. What is a `constexpr` is the shape of the model.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

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


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may take on a CUDA device."""
    from triton.runtime import driver

    index = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(index)["max_shared_mem"])


def capability(device: torch.device) -> int:
    """The major capability of a CUDA device: 8 for Ampere and Ada, 9 for Hopper, 10 and 12 for Blackwell."""
    return torch.cuda.get_device_capability(device)[0]


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Inside, a launch starts to compile its kernel and computes nothing; at the end, all of them are ready to launch.

    Kernels compile side by side, as many as there are cores. Where Triton cannot do that, they wait for their launch.
    """
    import triton
    from triton.runtime.jit import KernelInterface

    if not hasattr(triton, "AsyncCompileMode"):
        yield
        return

    def compile_only(kernel: Any, grid: Any) -> Callable[..., Any]:
        return lambda *args, **options: kernel.run(*args, grid=grid, warmup=True, **options)

    launch = KernelInterface.__getitem__
    with ThreadPoolExecutor(os.cpu_count()) as threads, triton.AsyncCompileMode(threads):
        KernelInterface.__getitem__ = compile_only
        try:
            yield
        finally:
            KernelInterface.__getitem__ = launch

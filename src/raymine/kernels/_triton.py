"""Helpers for Triton launches: the number of programs, powers of two, and compiling many kernels in parallel.

Kernels take counts as pointers, and sizes as integers that Triton does not specialise on. So a new scene or another
number of samples needs no new compilation. Only the shape of the model is `constexpr`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch


@cache
def programs(device: torch.device, each: int) -> int:
    """Programs of a launch: `each` per multiprocessor on CUDA; 2 in the interpreter, which runs them one by one."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count * each


def power_of_two(n: int, least: int = 1) -> int:
    """The smallest power of two that is at least n and `least`."""
    return max(least, 1 << max(0, n - 1).bit_length())


def shared_memory(device: torch.device) -> int:
    """Largest shared memory of one program on a CUDA device, in bytes."""
    from triton.runtime import driver

    index = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(index)["max_shared_mem"])


def capability(device: torch.device) -> int:
    """Major compute capability of a CUDA device: 8 for Ampere and Ada, 9 for Hopper, 10 and 12 for Blackwell."""
    return torch.cuda.get_device_capability(device)[0]


_compile_only: ContextVar[bool] = ContextVar("raymine_compile_only", default=False)
"""If True, a launch in this thread compiles its kernel but does not run it."""


class _Redirections:
    """State of `_redirected`: the number of threads inside it, and Triton's original launch method."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.launch: Callable[[Any, Any], Callable[..., Any]]


_redirections = _Redirections()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Context in which a launch compiles its kernel but does not run it. On exit, all of these kernels are compiled.

    Kernels compile in parallel, one per core. A Triton version without `AsyncCompileMode` runs launches as usual.
    Only launches of the calling thread are affected.
    """
    import triton

    if not hasattr(triton, "AsyncCompileMode"):
        yield
        return
    with ThreadPoolExecutor(os.cpu_count()) as threads, triton.AsyncCompileMode(threads), _redirected():
        token = _compile_only.set(True)
        try:
            yield
        finally:
            _compile_only.reset(token)


@contextlib.contextmanager
def _redirected() -> Iterator[None]:
    """Context in which `kernel[grid]` checks `_compile_only`, in every thread. The last exit restores Triton's method.

    Triton's own way to compile without launching is `kernel.warmup(...)` in place of `kernel[grid](...)`. The training
    step launches kernels of many ops from many modules, so that would need a second copy of every launch. Instead, the
    one method that every launch goes through is replaced while some thread compiles.
    """
    from triton.runtime.jit import KernelInterface

    with _redirections.lock:
        if not _redirections.users:
            _redirections.launch = KernelInterface.__getitem__
            KernelInterface.__getitem__ = _launch_or_compile
        _redirections.users += 1
    try:
        yield
    finally:
        with _redirections.lock:
            _redirections.users -= 1
            if not _redirections.users:
                KernelInterface.__getitem__ = _redirections.launch


def _launch_or_compile(kernel: Any, grid: Any) -> Callable[..., Any]:
    """Replacement of `KernelInterface.__getitem__`: launches or, if this thread only compiles, compiles."""
    if not _compile_only.get():
        return _redirections.launch(kernel, grid)
    return lambda *args, **options: kernel.run(*args, grid=grid, warmup=True, **options)

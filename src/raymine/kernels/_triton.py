"""What all launches share: how many programs fill a device, powers of two, and compiling many kernels at once.

Kernels take counts as pointers and sizes as plain numbers that are not specialised, so that neither another scene nor
another number of samples compiles anything again. What is a `constexpr` is the shape of the model.
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


_compile_only: ContextVar[bool] = ContextVar("raymine_compile_only", default=False)
"""Whether a launch in this thread compiles its kernel and computes nothing."""


class _Redirections:
    """How many threads compile at this moment, and Triton's own way to launch."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.launch: Callable[[Any, Any], Callable[..., Any]]


_redirections = _Redirections()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Inside, a launch starts to compile its kernel and computes nothing; at the end, all of them are ready to launch.

    Kernels compile side by side, as many as there are cores. Where Triton cannot do that, they wait for their launch.
    Only launches of this thread are concerned: others compute as ever.
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
    """Inside, `kernel[grid]` asks `_compile_only`, in every thread; after the last exit it is Triton's own again.

    Triton compiles without launching through `kernel.warmup(...)`, which has to stand where `kernel[grid](...)` does.
    What is compiled here is the training step as it is, whose modules launch kernels of many ops; a second copy of all
    these launches would have to be kept equal to the first. So the one method that every launch goes through is
    exchanged, for as long as some thread compiles.
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
    """In place of `KernelInterface.__getitem__`."""
    if not _compile_only.get():
        return _redirections.launch(kernel, grid)
    return lambda *args, **options: kernel.run(*args, grid=grid, warmup=True, **options)

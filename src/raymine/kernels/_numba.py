"""Compiler options of all CPU kernels.

Kernels release the GIL, use every core and are cached on disk, so a second process starts in a fraction of a second.
The only fast-math flag is `contract` (fused multiply-adds). The others may change NaN and infinity, which the check for
finite gradients relies on. Parallel tasks write disjoint outputs, and the order of each sum does not depend on the
number of threads. CPU runs are therefore reproducible bit for bit.

With the environment variable RAYMINE_BOUNDS_CHECK=1, every kernel is compiled on one thread, checks every index and is
not cached: an access outside of an array raises IndexError. (Numba's own NUMBA_BOUNDSCHECK sees neither the threads of
parallel kernels nor kernels that are in the cache.) It is for tests and for the search for a fault: kernels are slow.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from torch import Tensor

# Numba disables LLVM's SLP vectoriser by default. With it, the four features of a grid entry become one vector, and
# encoding takes half the time. The setting is read when a kernel is compiled.
numba.config.SLP_VECTORIZE = 1  # type: ignore[attr-defined]  # numba creates this attribute at run time

Kernel = Callable[..., Any]

BOUNDS_CHECK = os.environ.get("RAYMINE_BOUNDS_CHECK") == "1"
"""Whether kernels check every index; see the module docstring."""

_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "cache": not BOUNDS_CHECK,
    "boundscheck": BOUNDS_CHECK,
    "fastmath": {"contract"},
    "error_model": "numpy",
}


def kernel(function: Kernel) -> Kernel:
    """Decorator: a parallel kernel, compiled on its first call."""
    return numba.njit(parallel=not BOUNDS_CHECK, **_OPTIONS)(function)


def device_function(function: Kernel) -> Kernel:
    """Decorator: a scalar helper that kernels call. Numba compiles it as its own function; LLVM may inline it."""
    return numba.njit(inline="never", **_OPTIONS)(function)


def inlined_function(function: Kernel) -> Kernel:
    """Decorator: a helper that Numba inlines into its caller, so that the caller's constants stay constants in it."""
    return numba.njit(inline="always", **_OPTIONS)(function)


def array(tensor: Tensor) -> np.ndarray:
    """A contiguous NumPy array of a detached CPU tensor: a view if the tensor is contiguous, otherwise a copy."""
    values = (tensor.detach() if tensor.requires_grad else tensor).numpy()
    return values if values.flags.c_contiguous else np.ascontiguousarray(values)


def tasks(n: int, smallest: int = 256) -> int:
    """Number of parallel tasks for n items: up to four per thread, with at least `smallest` items each."""
    return max(1, min(4 * numba.get_num_threads(), n // smallest))

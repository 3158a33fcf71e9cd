"""The one place that decides how CPU kernels are compiled.

Kernels release the GIL, use every core and are cached on disk, so a second process starts in a fraction of a second.
Only contraction is allowed of the fast-math set: NaN and infinity must keep their meaning for the finite gate. Every
kernel writes disjoint outputs per parallel task in an order that does not depend on the number of threads, which is
what makes CPU runs repeat bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from torch import Tensor

# Numba leaves this pass of LLVM off. It turns the four features of a grid entry into one vector, and encoding takes
# half the time. It counts when a kernel is compiled.
numba.config.SLP_VECTORIZE = 1  # type: ignore[attr-defined]  # made by numba from the environment

Kernel = Callable[..., Any]


def kernel(function: Kernel) -> Kernel:
    """Compile a parallel kernel on first use."""
    return numba.njit(parallel=True, nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")(function)


def device_function(function: Kernel) -> Kernel:
    """Compile a scalar helper that kernels inline."""
    return numba.njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy", inline="never")(function)


def inlined_function(function: Kernel) -> Kernel:
    """Compile a helper into its caller, so that arguments that are constants there stay constants."""
    return numba.njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy", inline="always")(function)


def array(tensor: Tensor) -> np.ndarray:
    """A contiguous NumPy view (or copy, when strided) of a CPU tensor, without its graph."""
    return tensor.detach().contiguous().numpy()


def tasks(n: int, smallest: int = 256) -> int:
    """How many parallel tasks to cut n items into: enough to balance the load, none trivially small."""
    return max(1, min(4 * numba.get_num_threads(), n // smallest))

"""The PyTorch API of tiny-cuda-nn on CPU and CUDA, without a compiler.

`from raymine.compat import tinycudann as tcnn` replaces `import tinycudann as tcnn`. If you cannot change that line,
call `raymine.compat.tinycudann.install()` before it. docs/toolkit/tinycudann.md lists the names, the options and the
differences.
"""

from __future__ import annotations

import sys
from types import ModuleType

from raymine.compat._standin import stand_in
from raymine.compat.tinycudann import modules
from raymine.compat.tinycudann.modules import (
    Encoding,
    Module,
    Network,
    NetworkWithInputEncoding,
    free_temporary_memory,
    supports_jit_fusion,
)
from raymine.compat.tinycudann.precision import set_cpu_dtype

__all__ = [
    "Encoding",
    "Module",
    "Network",
    "NetworkWithInputEncoding",
    "free_temporary_memory",
    "install",
    "modules",
    "set_cpu_dtype",
    "supports_jit_fusion",
]


def install(force: bool = False) -> ModuleType:
    """Make `import tinycudann` return this package. Returns it. force: replace tinycudann even if already imported."""
    return stand_in("tinycudann", sys.modules[__name__], {"modules": modules}, force)

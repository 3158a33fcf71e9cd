"""tiny-cuda-nn's PyTorch surface on CPU and CUDA, without a compiler.

`from raymine.compat import tinycudann as tcnn` stands in for `import tinycudann as tcnn`; where that line is not yours
to change, `raymine.compat.tinycudann.install()` before it has the same effect. docs/toolkit/tinycudann.md lists names,
options and differences.
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
    """Let `import tinycudann` and its module `modules` find this package; returns it. See `stand_in` for `force`."""
    return stand_in("tinycudann", sys.modules[__name__], {"modules": modules}, force)

"""tiny-cuda-nn's PyTorch surface on CPU and CUDA, without a compiler.

`from raymine.compat import tinycudann as tcnn` stands in for `import tinycudann as tcnn`; where that line is not yours
to change, `raymine.compat.tinycudann.install()` before it has the same effect. docs/toolkit/tinycudann.md lists names,
options and differences.
"""

from __future__ import annotations

import sys
from types import ModuleType

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
from raymine.errors import ConfigError

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
    """Let `import tinycudann` and `import tinycudann.modules` find this package; returns it.

    If another `tinycudann` has been imported, that is refused, since parts of the program hold it already; `force`
    replaces it for imports to come.
    """
    ours = sys.modules[__name__]
    names = {"tinycudann": ours, "tinycudann.modules": modules}
    for name, module in names.items():
        there = sys.modules.get(name)
        if there not in (None, module) and not force:
            raise ConfigError(
                f"`{name}` has been imported already, from {getattr(there, '__file__', 'an unknown place')}. "
                "Call install() before the first `import tinycudann`, or pass force=True."
            )
    sys.modules.update(names)
    return ours

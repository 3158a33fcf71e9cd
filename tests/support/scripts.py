"""Scripts of `benchmarks/`, which are no package, as modules."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from support.paths import REPOSITORY


def script(path: str) -> ModuleType:
    """The module of benchmarks/<path>."""
    name = "benchmarks." + path.removesuffix(".py").replace("/", ".")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, REPOSITORY / "benchmarks" / path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Dataclasses look their module up by name.
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]

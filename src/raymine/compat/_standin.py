"""Standing in for another library under its own name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType

from raymine.errors import ConfigError


def stand_in(name: str, ours: ModuleType, modules: Mapping[str, ModuleType], force: bool) -> ModuleType:
    """Let `import name` find `ours`, and `import name.x` modules[x]; returns `ours`.

    If another library of that name has been imported, that is refused, since parts of the program hold it already;
    `force` replaces it for imports to come.
    """
    names = {name: ours, **{f"{name}.{path}": module for path, module in modules.items()}}
    for path, module in names.items():
        there = sys.modules.get(path)
        if there not in (None, module) and not force:
            raise ConfigError(
                f"`{path}` has been imported already, from {getattr(there, '__file__', 'an unknown place')}. "
                f"Call install() before the first `import {name}`, or pass force=True."
            )
    sys.modules.update(names)
    return ours

"""Replacing another library under its own module name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType

from raymine.errors import ConfigError


def stand_in(name: str, ours: ModuleType, modules: Mapping[str, ModuleType], force: bool) -> ModuleType:
    """Make `import name` return `ours`, and `import name.x` return modules["x"]. Returns `ours`.

    ConfigError if another library of that name has already been imported, because parts of the program may use it.
    force: replace it anyway, for later imports.
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

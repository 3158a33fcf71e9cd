"""Replacing another library under its own module name, and refusing the parts of it that are not served."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

from raymine.errors import ConfigError


def stand_in(name: str, ours: ModuleType, modules: Mapping[str, ModuleType], force: bool) -> ModuleType:
    """Make `import name` return `ours`, and `import name.x` return modules["x"]. Returns `ours`.

    ConfigError if another library of that name has already been imported, because parts of the program may use it.
    force: replace it anyway, for later imports; none of its modules can be imported any more.
    """
    names = {name: ours, **{f"{name}.{path}": module for path, module in modules.items()}}
    for path, module in names.items():
        there = sys.modules.get(path)
        if there not in (None, module) and not force:
            raise ConfigError(
                f"`{path}` has been imported already, from {getattr(there, '__file__', 'an unknown place')}. "
                f"Call install() before the first `import {name}`, or pass force=True."
            )
    for path in [path for path in sys.modules if path.startswith(f"{name}.") and path not in names]:
        del sys.modules[path]
    sys.modules.update(names)
    _refused.renames[name] = ours.__name__
    return ours


def refusing(library: str, package: str, reasons: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """A `__getattr__` for our package that stands for a library. It says why names of the library are missing.

    reasons: by name of an attribute or submodule, the rest of a sentence that starts with that name.

    Attribute access raises AttributeError. `import package.x` and `from package import x` raise ImportError, with the
    reason as well: for them Python discards the message of an AttributeError.
    """
    told = {name: f"`{library}.{name}` {reason}" for name, reason in reasons.items()}
    _refused.reasons |= {f"{package}.{name}": sentence for name, sentence in told.items()}
    if _refused not in sys.meta_path:
        sys.meta_path.insert(0, _refused)

    def missing(name: str) -> NoReturn:
        raise AttributeError(told.get(name, f"module {package!r} has no attribute {name!r}"))

    return missing


class _Refused(MetaPathFinder):
    """Raises ImportError for names that `refusing` lists. It finds nothing."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self.renames: dict[str, str] = {}
        """Module names that stand for one of our packages: {"nerfacc": "raymine.compat.nerfacc"}."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, dot, rest = fullname.partition(".")
        reason = self.reasons.get(self.renames.get(top, top) + dot + rest)
        if reason is not None:
            raise ImportError(reason, name=fullname)
        return None


_refused = _Refused()

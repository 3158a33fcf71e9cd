"""Coverage of fuzz cases: the public callables of a package, and whether each of them has a case."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, Protocol


def _is_record(value: type) -> bool:
    """Plain records, enumerations, exceptions and protocols: nothing to call but their constructor."""
    plain = is_dataclass(value) and "__post_init__" not in vars(value)
    return issubclass(value, (tuple, Enum, Exception)) or plain or issubclass(value, Protocol)  # type: ignore[arg-type]


def public_callables(package: str, only: str = "") -> set[str]:
    """Full names of the public functions and classes of a package, and of the public methods of these classes.

    Modules whose names begin with an underscore are not public. only: the last part of the names of modules to look
    at; all if empty. An object has one name, that of the module that defines it, wherever it is exported.
    """
    root = importlib.import_module(package)
    inner = pkgutil.walk_packages(root.__path__, f"{package}.") if hasattr(root, "__path__") else ()
    names: set[str] = set()
    for module in (root, *(importlib.import_module(each.name) for each in inner)):
        if _hidden(module.__name__) or (only and module.__name__.split(".")[-1] != only):
            continue
        for name, value in vars(module).items():
            home = getattr(value, "__module__", None) or ""
            if name.startswith("_") or _hidden(home) or not home.startswith("raymine."):
                continue
            if inspect.isfunction(value):
                names.add(f"{home}.{value.__qualname__}")
            elif inspect.isclass(value) and not _is_record(value):
                own = f"{home}.{value.__qualname__}"
                names.add(own)
                methods = (key for key, part in vars(value).items() if inspect.isfunction(part) and key[0] != "_")
                names |= {f"{own}.{key}" for key in methods}
    return {name for name in names if name.startswith(package)}


def _hidden(module: str) -> bool:
    return any(part.startswith("_") for part in module.split("."))


def require_coverage(suite: str, wanted: set[str]) -> None:
    """Fail if one of the wanted callables has no case, or if a case names something that is not there."""
    covered = {name for case in importlib.import_module(suite).CASES for name in case.covers}
    missing = sorted(wanted - covered)
    assert not missing, f"{len(missing)} of {len(wanted)} public callables have no fuzz case: {', '.join(missing)}"
    stale = sorted(name for name in covered if not _exists(name))
    assert not stale, f"cases name what does not exist: {', '.join(stale)}"


def _exists(name: str) -> bool:
    parts = name.split(".")
    for n in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            found = getattr(found, part, None)
        return callable(found)
    return False

"""Classes by import path, for fields of a config that accept classes of any package.

Importing a module runs its code, so the config alone must not cause an import. A class may come from raymine, from a
module that is already imported, from a package that is registered under the entry-point group `raymine.recipes`, or
from a package that the user allows (`allowing`). Any other class is refused before its module is imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import importlib.metadata
import os
import re
import sys
import traceback
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from raymine.errors import ConfigError, RaymineError, option
from raymine.files import JSON

ENTRY_POINTS = "raymine.recipes"
"""The entry-point group under which a package registers recipes. This also allows its classes."""

_RAYMINE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_NAME = r"[^\W\d]\w*"
_PATH = re.compile(rf"({_NAME}(?:\.{_NAME})*):({_NAME})")
_PACKAGE = re.compile(rf"{_NAME}(?:\.{_NAME})*")
_ALLOWED: ContextVar[tuple[str, ...]] = ContextVar("_ALLOWED", default=())


class ForeignTypeError(ConfigError):
    """A class of another package that is not allowed or does not exist."""


@contextlib.contextmanager
def allowing(packages: str | Collection[str]) -> Iterator[None]:
    """Within the block, configs may use classes of these packages (or modules), which are then imported."""
    names = (packages,) if isinstance(packages, str) else tuple(packages)
    for name in names:
        if not _PACKAGE.fullmatch(name):
            raise ConfigError(
                f"{option('allow', name)} is not the name of a package.", hint="Give a name such as my_package."
            )
    token = _ALLOWED.set((*_ALLOWED.get(), *names))
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def allowed() -> tuple[str, ...]:
    """The packages that are allowed by the surrounding `allowing` blocks."""
    return _ALLOWED.get()


def import_path(cls: type) -> str:
    """`package.module:ClassName`, with which `resolve` finds the class; `ConfigError` if it could not."""
    module, name = cls.__module__, cls.__qualname__
    if "." in name:
        raise ConfigError(
            f"`{name}` of {module} is defined inside a class or a function, where a config cannot find it again.",
            hint="Define it at the top of a module.",
        )
    if vars(sys.modules[module]).get(name) is not cls:
        raise ConfigError(
            f"`{module}:{name}` is another class by now than that of the value.",
            hint="Make the value again after the class was defined again.",
        )
    return f"{module}:{name}"


def resolve(path: str, allow: Collection[str], where: str) -> type:
    """The frozen dataclass that `path` names.

    allow: packages that may be imported, besides raymine and registered ones. where: the dotted name with which error
    messages begin.
    """
    match = _PATH.fullmatch(path)
    if match is None:
        raise ConfigError(f"{where}.type: must look like package.module:ClassName, got {path!r}.")
    module_name, name = match.groups()
    module = sys.modules.get(module_name)
    if module is None:
        _require_allowed(module_name, path, allow, where)
        module = import_module(module_name, f"{where}: the config wants the class `{path}`")
    # Not getattr, which could run a `__getattr__` of the module.
    found = vars(module).get(name)
    if found is None:
        raise ForeignTypeError(f"{where}: the config wants the class `{path}`, {_lacks(module, name)}")
    if not (isinstance(found, type) and is_frozen(found)):
        raise ConfigError(f"{where}: `{path}` must be a frozen dataclass, which it is not.")
    return found


def is_frozen(cls: type) -> bool:
    """Whether `cls` is a frozen dataclass."""
    parameters: Any = getattr(cls, "__dataclass_params__", None)
    return dataclasses.is_dataclass(cls) and bool(parameters.frozen)


def import_module(name: str, wanted: str) -> ModuleType:
    """Import a module; the caller must have checked that this is allowed.

    If it fails, `ConfigError` says `wanted` (what the module is needed for), then the error, its file and line.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise ForeignTypeError(f"{wanted}, but importing `{name}` failed: {describe(error)}.") from error
        raise ForeignTypeError(
            f"{wanted}, but there is no module `{error.name}`.",
            hint="Install its package, or put the folder that holds it on PYTHONPATH.",
        ) from error
    except (Exception, SystemExit) as error:
        raise ForeignTypeError(f"{wanted}, but importing `{name}` failed: {describe(error)}.") from error


def describe(error: BaseException, within: str | None = None) -> str:
    """An error in a user's code as one phrase: the error, its file and line.

    within: the user's file. The phrase names its last line in the traceback, or else the last line outside raymine.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == within]
    own = own or [frame for frame in frames if not frame.filename.startswith((_RAYMINE, "<frozen"))]
    file, line = (own[-1].filename, own[-1].lineno) if own else ("", None)
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    what = (error.message if isinstance(error, RaymineError) else f"{type(error).__name__}: {text}").rstrip(".: ")
    return f"{what} ({file}, line {line})" if file else what


def registered_recipes() -> dict[str, importlib.metadata.EntryPoint]:
    """The recipes that installed packages register under `ENTRY_POINTS`, by name. Nothing is imported."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def packages_to_allow(data: JSON) -> list[str]:
    """The packages that a new process must allow in order to decode this config."""
    wanted = {match.group(1).partition(".")[0] for match in map(_PATH.fullmatch, _types_in(data)) if match}
    return sorted(wanted - {"raymine", "__main__"} - _registered_packages()) if wanted - {"raymine"} else []


def _types_in(data: JSON) -> Iterator[str]:
    if isinstance(data, dict):
        if isinstance(data.get("type"), str):
            yield data["type"]
        for value in data.values():
            yield from _types_in(value)
    elif isinstance(data, list):
        for item in data:
            yield from _types_in(item)


def _registered_packages() -> set[str]:
    return {entry.value.partition(":")[0].partition(".")[0].strip() for entry in registered_recipes().values()}


def _require_allowed(module: str, path: str, allow: Collection[str], where: str) -> None:
    package = module.partition(".")[0]
    if package == "raymine" or any(module == name or module.startswith(f"{name}.") for name in allow):
        return
    if package in _registered_packages():
        return
    raise ForeignTypeError(
        f"{where}: the config wants the class `{path}`, and importing `{module}` runs its code; if you trust it, allow "
        f"that with {option('allow', package)}."
    )


def _lacks(module: ModuleType, name: str) -> str:
    if module.__name__ == "__main__":
        return "which the script that is running does not define; define it in a module that can be imported."
    close = difflib.get_close_matches(name, [n for n, value in vars(module).items() if isinstance(value, type)], n=1)
    meant = f" (did you mean `{close[0]}`?)" if close else ""
    return f"which `{module.__name__}` does not define{meant}."

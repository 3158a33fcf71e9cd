"""Errors a user can act on. The lowest layer: it imports nothing of raymine.

Every message names the thing, the rule that it broke, its value and the remedy. The command line prints these errors
without a traceback and exits with `exit_code`. Any other exception that escapes is a bug and keeps its traceback.

Messages name options through `option`: Python callers read argument names, users of the command line read flags.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from os import PathLike, fspath
from typing import Any, Final

_NO_VALUE: Final = object()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ " Did you mean `x`?" with the closest of the known names, whatever their case; empty if none is close."""
    by_case = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), by_case, n=1)
    return f" Did you mean `{by_case[close[0]]}`?" if close else ""


class RaymineError(Exception):
    """An error that the user can fix. `exit_code` is the exit code of the command line."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n{hint}" if hint else message)
        self.message = message
        self.hint = hint


class ConfigError(RaymineError, ValueError):
    """An option or a config value that cannot work."""

    exit_code = 2


class SceneError(RaymineError):
    """A scene folder that cannot be read."""

    exit_code = 3


class RunError(RaymineError):
    """A run folder that cannot be used: missing, locked, foreign or in the wrong state."""

    exit_code = 4


class CheckpointError(RunError):
    """A checkpoint that is damaged or belongs to another model or version."""


class ResourceError(RaymineError):
    """Not enough memory, disk space or permission."""

    exit_code = 5


class TrainingError(RaymineError):
    """Training cannot go on (for instance, it stays non-finite after every recovery)."""

    exit_code = 6


class MissingExtraError(RaymineError, ImportError):
    """An optional dependency is not installed."""

    exit_code = 7

    def __init__(self, package: str, extra: str, what: str) -> None:
        super().__init__(
            f"{what} needs the package `{package}`, which is not installed.",
            hint=f"Install it with: pip install 'raymine[{extra}]'",
        )


def require_finite(config: Any) -> None:
    """Raise `ConfigError` if a number of `config`, a dataclass, is NaN or infinite. Its `__post_init__` calls this."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"`{field.name}` of {type(config).__name__} must be a finite number, got {value}.")


def _as_argument(name: str, value: Any) -> str:
    """`steps` or `steps=3`, in backquotes."""
    if value is _NO_VALUE:
        return f"`{name}`"
    return f"`{name}={(fspath(value) if isinstance(value, PathLike) else value)!r}`"


def _as_flag(name: str, value: Any) -> str:
    """`--steps` or `--steps 3`; a switch is `--resume` when True and `--no-page` when False."""
    flag = name.replace("_", "-")
    if value is False:
        return f"--no-{flag}"
    return f"--{flag}" if value is _NO_VALUE or value is True else f"--{flag} {value}"


_SPELLING: ContextVar[Callable[[str, Any], str]] = ContextVar("_SPELLING", default=_as_argument)
_RENAMED: ContextVar[Mapping[str, str]] = ContextVar("_RENAMED", default={})  # noqa: B039 (never changed)

_ABSENT: ContextVar[frozenset[str]] = ContextVar("_ABSENT", default=frozenset())


def has_option(name: str) -> bool:
    """Whether the caller has this option, perhaps by another name. Advice must not name one that a command lacks."""
    return name in _RENAMED.get() or name not in _ABSENT.get()


def option(name: str, value: Any = _NO_VALUE) -> str:
    """The name of an option for an error message, as the caller typed it, with its value if one is given.

    In Python "`max_seconds`" and "`max_seconds=5`"; on the command line "--max-seconds" and "--max-seconds 5".
    """
    return _SPELLING.get()(_RENAMED.get().get(name, name), value)


@contextlib.contextmanager
def speaking_of_flags() -> Iterator[None]:
    """Within the block, `option` returns flags of the command line."""
    token = _SPELLING.set(_as_flag)
    try:
        yield
    finally:
        _SPELLING.reset(token)


@contextlib.contextmanager
def renamed_options(names: Mapping[str, str]) -> Iterator[None]:
    """Within the block, `option` uses other names for some options, for instance `{"max_seconds": "seconds"}`."""
    token = _RENAMED.set({**_RENAMED.get(), **names})
    try:
        yield
    finally:
        _RENAMED.reset(token)


@contextlib.contextmanager
def absent_options(names: Iterable[str]) -> Iterator[None]:
    """Within the block, `has_option` is False for these names, unless they are renamed."""
    token = _ABSENT.set(frozenset(names))
    try:
        yield
    finally:
        _ABSENT.reset(token)

"""Reading the dictionaries that describe encodings and networks: defaults, range checks, and errors by option name."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from raymine.errors import ConfigError


class Options:
    """The options of one encoding or network. `otype` and other names are case-insensitive."""

    def __init__(self, config: object, what: str, default_otype: str) -> None:
        if not isinstance(config, Mapping):
            raise ConfigError(f"{what} must be described by a dictionary such as {{'otype': ...}}, got {config!r}.")
        self._config: Mapping[str, Any] = config
        self._read = {"otype"}
        self.otype = str(config.get("otype", default_otype))

    def __contains__(self, name: str) -> bool:
        return name in self._config

    def value(self, name: str, default: Any = None) -> Any:
        """The value of an option, unchecked. Marks it as read."""
        self._read.add(name)
        return self._config.get(name, default)

    def whole(self, name: str, default: int, low: int = 1, high: int | None = None) -> int:
        """A whole number in low .. high."""
        value = self.value(name, default)
        try:
            number = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
        except TypeError:
            number = low - 1
        if isinstance(value, bool) or number < low or (high is not None and number > high):
            expected = f"at least {low}" if high is None else f"in {low} .. {high}"
            raise ConfigError(f"`{name}` of {self.otype} must be a whole number {expected}, got {value!r}.")
        return number

    def number(self, name: str, default: float) -> float:
        """A finite number."""
        value = self.value(name, default)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise ConfigError(f"`{name}` of {self.otype} must be a finite number, got {value!r}.")
        return number

    def choice(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """One of `allowed`, in the spelling of `allowed`; the comparison ignores case."""
        value = self.value(name, default)
        found = {one.lower(): one for one in allowed}.get(str(value).lower())
        if found is None:
            raise ConfigError(f"`{name}` of {self.otype} must be one of {', '.join(allowed)}, got {value!r}.")
        return found

    def refuse(self, name: str, default: bool | str) -> None:
        """ConfigError if an option of tiny-cuda-nn that is not supported here has another value than `default`."""
        value = self.value(name, default)
        if str(value).lower() != str(default).lower():
            raise ConfigError(
                f"`{name}` of {self.otype} is supported with the value {default!r} only, got {value!r}. "
                "Leave it out or use that value."
            )

    def finish(self) -> None:
        """Warn about options that were not read. tiny-cuda-nn ignores them silently, and so hides typing errors."""
        unknown = sorted(str(name) for name in self._config if name not in self._read)
        if unknown:
            warnings.warn(
                f"{self.otype} has no option {', '.join(f'`{name}`' for name in unknown)}; ignored. "
                f"It reads {', '.join(sorted(self._read))}.",
                stacklevel=2,
            )


def next_multiple(value: int, of: int) -> int:
    """The smallest multiple of `of`, at least 1, that is not below `value`."""
    if of < 1:
        raise ConfigError(f"`of` must be at least 1, got {of}.")
    return -(-value // of) * of

"""Read TOML files of users: each function raises `ConfigError` with the file, the key and the rule that it broke."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from raymine.errors import ConfigError, did_you_mean
from raymine.files import JSON, UnreadableFile, expanded, read_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LARGEST = 1 << 20


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The content of a TOML file. what: the kind of file, for messages."""
    try:
        return tomllib.loads(read_file(path, largest=_LARGEST).decode())
    except UnreadableFile as error:
        raise ConfigError(f"The {what} {path} {error.what}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The {what} {path} is not valid TOML: {error}.") from error


def require_known(path: Path, what: str, entry: Mapping[str, Any], known: Collection[str]) -> None:
    for key in entry:
        if key not in known:
            raise ConfigError(
                f"{path}: {what} has an unknown key `{key}`.{did_you_mean(key, known)}",
                hint=f"Known: {', '.join(known)}.",
            )


def tables(path: Path, data: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = data.get(key, [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise ConfigError(f"{path}: `{key}` must be tables in double brackets: [[{key}]].")
    return found


def words(path: Path, key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{path}: `{key}` must be a list of names, got {value!r:.80}.")
    return tuple(value)


def text(path: Path, key: str, entry: Mapping[str, Any]) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{path}: `{key}` must be text, got {value!r:.80}.")
    return value


def path_in(path: Path, key: str, value: Any, here: Path) -> Path:
    return here / expanded(text(path, key, {key: value}))


def number(path: Path, entry: Mapping[str, Any], key: str, default: float, low: float, high: float) -> float:
    value = entry.get(key, default)
    whole = isinstance(default, int)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise ConfigError(f"{path}: `{key}` must be {kind} between {low:g} and {high:g}, got {value!r}.")
    return value


def options_of(path: Path, stage: str, value: Any) -> dict[str, JSON]:
    if not isinstance(value, dict) or any(isinstance(item, dict) for item in value.values()):
        raise ConfigError(f"{path}: [{stage}] must be a table of options of `raymine {stage}`.")
    return {key.replace("-", "_"): item for key, item in value.items()}

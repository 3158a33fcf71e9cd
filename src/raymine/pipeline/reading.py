"""Read TOML files of users: each function raises `ConfigError` with the file, the key and the rule that it broke."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raymine.errors import ConfigError, did_you_mean, option
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
    except UnicodeDecodeError as error:
        raise ConfigError(f"The {what} {path} is not a text file in UTF-8.", hint="Give a TOML file.") from error
    except tomllib.TOMLDecodeError as error:
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


def number(path: Path | str, entry: Mapping[str, Any], key: str, default: float, low: float, high: float) -> float:
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


@dataclass(frozen=True)
class Settings:
    """What a command line sets for every scene, over what the file says. options: for each stage, by name."""

    downscale: int | None = None
    options: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict)


def settings_of(given: Collection[str], stages: Collection[str]) -> Settings:
    """Settings from texts such as `train.steps=200` and `downscale=4`. `ConfigError` for one that is neither.

    A value is read as TOML has it, such as 200, true, "text" or ["a", "b"]; anything else is text.
    """
    flag, downscale = option("set"), None
    options: dict[str, dict[str, JSON]] = {}
    for each in given:
        key, equals, typed = each.partition("=")
        stage, _, name = key.strip().partition(".")
        if not equals or not typed.strip():
            raise ConfigError(f"{flag} {each}: a value is missing.", hint=f"For instance: {flag} train.steps=200")
        if stage == "downscale" and not name:
            downscale = int(number(flag, {stage: _value(typed)}, stage, 1, 1, 64))
        elif not name or stage not in stages:
            close = did_you_mean(stage, ("downscale", *stages))
            raise ConfigError(
                f"{flag} {each}: `{key.strip()}` must be `downscale` or STAGE.OPTION.{close}",
                hint=f"Stages: {', '.join(stages)}.",
            )
        else:
            options.setdefault(stage, {})[name.replace("-", "_")] = _value(typed)
    return Settings(downscale, options)


def _value(typed: str) -> JSON:
    try:
        found = tomllib.loads(f"value = {typed}")
    except tomllib.TOMLDecodeError:
        return typed.strip()
    # A date is text to the options of a command.
    value = found["value"]
    return value if isinstance(value, str | int | float | bool | list) and len(found) == 1 else typed.strip()

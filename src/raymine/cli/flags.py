"""Check the flags of a command line and their values before tyro reads them.

tyro finds the same mistakes, but reports them in its own terms and with the help of another command. Here a message
names the flag as it was typed, its rule and its value, and suggests the closest one.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import tyro

from raymine.errors import ConfigError, did_you_mean

_HELP = ("-h", "--help")


# What people type for a choice that has another name. The closest spelling of `gpu` would be `cpu`.
_SYNONYMS = {"gpu": "cuda", "nvidia": "cuda"}


def flags_of(command: type) -> dict[str, Any]:
    """The flags of a command, such as `--max-seconds` and `-v`, with the types of their values."""
    flags: dict[str, Any] = {}
    for name, hint in _hints(command).items():
        if not _is_positional(hint):
            metadata = getattr(hint, "__metadata__", ())
            aliases = [alias for each in metadata for alias in getattr(each, "aliases", None) or ()]
            plain = typing.get_args(hint)[0] if metadata else hint
            if typing.get_origin(plain) is tuple and metadata:
                # A repeated flag takes one value each time.
                plain = typing.get_args(plain)[0]
            flags |= dict.fromkeys((_flag(name), *aliases), plain)
    return flags


def is_repeatable(command: type, flag: str) -> bool:
    """Whether a flag may be given several times, or takes several values."""
    hint = {_flag(name): hint for name, hint in _hints(command).items()}[flag]
    return typing.get_origin(typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint) is tuple


def require_valid(name: str, arguments: list[str], command: type, others: Mapping[str, type]) -> None:
    """Raise `ConfigError` for a flag that `command` lacks, for a value that does not fit, for too many or too few
    arguments, and for a required flag that is missing.

    name: the command as it is typed, such as `train`. others: all commands by name, to say which one has a flag.
    """
    flags, page, plain, typed_flags = flags_of(command), f"Options: raymine {name} --help", list[str](), set[str]()
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        typed, equals, value = argument.partition("=")
        flag = typed.replace("_", "-")
        typed_flags.add(flag)
        if flag in _HELP:
            return
        if not argument.startswith("-") or argument == "-":
            plain.append(_text(argument, f"an argument of `raymine {name}`", page))
        elif flag not in flags:
            owners = [f"`raymine {other}`" for other, its in others.items() if flag in flags_of(its)]
            there = f" It is an option of {_listed(owners, 'and')}." if owners else _suggest(flag, flags)
            raise ConfigError(f"`raymine {name}` has no option {typed}.{there}", hint=page)
        elif flags[flag] is not bool:
            given = value if equals else waiting.pop(0) if waiting else ""
            _require_fits(flag, _text(given, f"the value of {flag}", page), flags[flag], page)
            while typing.get_origin(flags[flag]) is tuple and waiting and not waiting[0].startswith("-"):
                _text(waiting.pop(0), f"a value of {flag}", page)
        elif equals:
            raise ConfigError(f"{flag} is a switch and takes no value, got `{value}`.", hint=page)
    _require_count(name, plain, command, page)
    for field in dataclasses.fields(command):
        flag = _flag(field.name)
        if flag in flags and flag not in typed_flags and _is_required(field):
            raise ConfigError(f"`raymine {name}` needs {flag} {field.name.upper()}.", hint=page)


def _hints(command: type) -> dict[str, Any]:
    hints = typing.get_type_hints(command, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(command)}


def _is_positional(hint: Any) -> bool:
    # Markers of tyro are the metadata of `Annotated`.
    return set(tyro.conf.Positional[int].__metadata__) <= set(getattr(hint, "__metadata__", ()))  # type: ignore[attr-defined]


def _text(value: str, what: str, page: str) -> str:
    """`value`, unless it is empty or no file could have this name."""
    if not value or value.startswith("--"):
        raise ConfigError(f"{what} is missing or empty.", hint=page)
    if "\0" in value:
        raise ConfigError(f"{what} must not hold a NUL character.", hint=page)
    return value


def _require_count(name: str, given: list[str], command: type, page: str) -> None:
    """Raise `ConfigError` for more arguments than the command has, and for one that is missing."""
    known = [each for each in dataclasses.fields(command) if _is_positional(_hints(command)[each.name])]
    several = any(typing.get_origin(typing.get_args(_hints(command)[each.name])[0]) is tuple for each in known)
    if len(given) > len(known) and not several:
        raise ConfigError(f"`raymine {name}` takes no such argument: `{given[len(known)]}`.", hint=page)
    for field in known[len(given) :]:
        if _is_required(field):
            raise ConfigError(f"`raymine {name}` needs its argument {field.name.upper()}.", hint=page)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _suggest(flag: str, known: Iterable[str]) -> str:
    """Flags that are spelt alike or share a word: `--max-steps` may be `--steps` or `--max-seconds`."""
    close = difflib.get_close_matches(flag, known, n=1)
    words = set(flag.strip("-").split("-"))
    close += [other for other in known if other not in close and words & set(other.strip("-").split("-"))]
    return f" Did you mean {' or '.join(close[:3])}?" if close else ""


def _require_fits(flag: str, value: str, hint: Any, page: str) -> None:
    """Raise `ConfigError` if the value of a number or of a choice does not fit its type."""
    kinds = [hint, *typing.get_args(hint)]
    choices = next((typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is Literal), ())
    if choices and value not in choices:
        meant = did_you_mean(_SYNONYMS.get(value.lower(), value), choices)
        raise ConfigError(f"{flag} must be {_listed(choices, 'or')}, got `{value}`.{meant}", hint=page)
    for kind, what in ((int, "a whole number"), (float, "a number")):
        if kind in kinds:
            try:
                kind(value)
            except ValueError:
                raise ConfigError(f"{flag} must be {what}, got `{value[:40]}`.", hint=page) from None


def _listed(names: Sequence[str], word: str) -> str:
    """`a, b or c`."""
    return f" {word} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)

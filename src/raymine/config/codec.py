"""Nested frozen dataclasses to JSON and back, exactly.

`from_json(cls, to_json(value))` equals `value`. Floats keep every bit. Infinities and NaN become strings, because JSON
has neither. Tuples become lists, and tuples again. A field whose type is a union of dataclasses stores the name of its
class under "type". A field with the metadata `omit_none` is left out where it is None. Data that does not fit raises an
error with its dotted name; nothing is guessed.

A field whose type is a `typing.Protocol` holds any frozen dataclass, of raymine or of another package. Its "type" is an
import path such as "raymine.fields.hash_field:HashFieldConfig" (see `config.types`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from raymine.errors import ConfigError, RaymineError
from raymine.files import JSON, flattened

from .types import allowed, import_path, is_frozen, resolve

T = TypeVar("T")
# A dotted name such as `loss[0].delta`, and a single name or index of it.
_DOTTED = re.compile(r"[^.\[\]]+(\[\d+\])*(\.[^.\[\]]+(\[\d+\])*)*")
_KEY = re.compile(r"[^.\[\]]+|\[\d+\]")
_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def to_json(value: Any) -> JSON:
    """`value` (a dataclass, or plain data) as data for `json.dumps`."""
    return _encode(value, type(value), "")


def from_json(cls: type[T], data: JSON, where: str = "") -> T:
    """The inverse of `to_json`: an instance of `cls`. `where` is the dotted name with which error messages begin.

    Raises `ConfigError` for unknown keys, for missing keys without a default, for values of a wrong type, and if a
    dataclass rejects its values.
    """
    return typing.cast("T", _decode(data, cls, where))


def digest(data: JSON) -> str:
    """SHA-256 (hex) of JSON data, independent of the order of keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, allow_nan=False).encode()).hexdigest()


def differences(stored: JSON, asked: JSON, *, stored_in: str = "in the run") -> list[str]:
    """One line per value that differs, such as `train.field.levels: 8 in the run, 16 asked`; [] if they are equal."""
    before, after = flattened(stored), flattened(asked)
    lines = []
    for name in [*before, *(n for n in after if n not in before)]:
        old, new = (json.dumps(side[name]) if name in side else "absent" for side in (before, after))
        if old != new:
            lines.append(f"{name}: {old} {stored_in}, {new} asked")
    return lines


def replace_fields(config: T, overrides: Mapping[str, Any]) -> T:
    """A copy of `config` with fields replaced by dotted name, such as `{"field.levels": 16, "loss[0].delta": 0.2}`.

    A value is JSON data, or a dataclass that the field accepts. All checks run again. An unknown name raises
    `ConfigError`, which suggests similar names.
    """
    data = to_json(config)
    for name, value in overrides.items():
        *path, last = _keys(name)
        here, hint = data, type(config)
        for key in path:
            hint = _hint_within(here, hint, key)
            here = here[key] if _holds(here, key) else None
        if not (_holds(here, last) or last in _settings(here, hint)):
            known = sorted(flattened(data))
            raise ConfigError(f"There is no setting `{name}`.", hint=_suggest(name, known))
        here[last] = _encode_override(value, _hint_within(here, hint, last), name)
    return from_json(type(config), data)


def _keys(name: str) -> list[str | int]:
    """`loss[0].delta` -> ["loss", 0, "delta"]. Text that is not a dotted name becomes one key, which does not exist."""
    if not _DOTTED.fullmatch(name):
        return [name]
    return [int(key[1:-1]) if key.startswith("[") else key for key in _KEY.findall(name)]


def _holds(data: JSON, key: str | int) -> bool:
    """Whether JSON data has this key (of an object) or this index (of a list)."""
    if isinstance(key, int):
        return isinstance(data, list) and key < len(data)
    return isinstance(data, dict) and key in data


def _settings(data: JSON, hint: Any) -> set[str]:
    """Names of the fields of a dataclass, of which its encoded `data` may hold a part."""
    cls = _record_type(data, hint, "") if isinstance(data, dict) else None
    return set() if cls is None else {f.name for f in dataclasses.fields(cls) if f.init}


def _hint_within(data: JSON, hint: Any, key: str | int) -> Any:
    """The declared type of the value at `key` of encoded `data`, whose declared type is `hint`; Any if not known."""
    if isinstance(key, int):
        return _item_hint(hint, key)
    cls = _record_type(data, hint, "") if isinstance(data, dict) else None
    return Any if cls is None else _hints(cls).get(key, Any)


def _encode_override(value: Any, hint: Any, where: str) -> JSON:
    """Encode a replacement value: JSON data as it is, a dataclass (or several) by the declared type of the field."""
    items = value if isinstance(value, (list, tuple)) else (value,)
    is_json = not any(dataclasses.is_dataclass(item) for item in items)
    return to_json(value) if is_json else _encode(value, hint, where)


def _suggest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    close += [k for k in known if k.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1] and k not in close][:3]
    return f"Did you mean {' or '.join(close)}?" if close else f"Known settings: {', '.join(known)}."


@lru_cache(maxsize=256)
def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except (NameError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"The annotations of `{cls.__module__}:{cls.__qualname__}` cannot be evaluated: {error}.",
            hint="Import what they name when the module runs, not only for type checkers.",
        ) from error


def _members(hint: Any) -> tuple[Any, ...]:
    """The members of a union; of another type, the type itself."""
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def _records(hint: Any) -> list[type]:
    return [m for m in _members(hint) if isinstance(m, type) and dataclasses.is_dataclass(m)]


def _protocol(hint: Any) -> type | None:
    """The Protocol in a field's type, alone or as a member of a union; None if there is none."""
    for member in _members(hint):
        bare = typing.get_origin(member) or member
        if getattr(bare, "_is_protocol", False):
            return typing.cast("type", bare)
    return None


def _item_hint(hint: Any, place: int) -> Any:
    """The declared type of the item at `place` of a tuple or list; Any if not declared."""
    for member in _members(hint):
        args = typing.get_args(member)
        if typing.get_origin(member) is list and args:
            return args[0]
        if typing.get_origin(member) is tuple and args:
            return args[0] if args[-1] is Ellipsis else (args[place] if place < len(args) else Any)
    return Any


def _value_hint(hint: Any) -> Any:
    """The declared type of the values of a mapping; Any if not declared."""
    for member in _members(hint):
        if typing.get_origin(member) in (dict, Mapping):
            return typing.get_args(member)[1]
    return Any


def _encode(value: Any, hint: Any, where: str) -> JSON:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encode_record(value, hint, where)
    if _protocol(hint) is not None and len(_members(hint)) == 1:
        raise ConfigError(f"{where.lstrip('.')}: must be a frozen dataclass, got {type(value).__name__}.")
    if isinstance(value, Mapping):
        return {str(key): _encode(item, _value_hint(hint), f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(item, _item_hint(hint, i), f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    raise ConfigError(f"{where.lstrip('.') or 'value'}: {type(value).__name__} cannot be written as JSON.")


def _encode_record(value: Any, hint: Any, where: str) -> JSON:
    cls: type = type(value)
    hints = _hints(cls)
    data = {f.name: _encode(getattr(value, f.name), hints[f.name], f"{where}.{f.name}") for f in _fields(value)}
    if _protocol(hint) is None:
        return {"type": cls.__name__, **data} if len(_records(hint)) > 1 else data
    if not is_frozen(cls):
        raise ConfigError(f"{where.lstrip('.')}: `{cls.__name__}` must be a frozen dataclass.")
    if "type" in data:
        raise ConfigError(
            f"{where.lstrip('.')}: `{cls.__name__}` has a field `type`, which is where a config keeps the class.",
            hint="Give the field another name.",
        )
    return {"type": import_path(cls), **data}


def _fields(value: Any) -> tuple[dataclasses.Field[Any], ...]:
    """The fields that are written."""
    named = (f for f in dataclasses.fields(value) if f.init)
    return tuple(f for f in named if not f.metadata.get("omit_none") or getattr(value, f.name) is not None)


def _decode(data: JSON, hint: Any, where: str) -> Any:
    if hint is Any or hint is object:
        return data
    if _protocol(hint) is not None and isinstance(data, dict):
        return _decode_record({k: v for k, v in data.items() if k != "type"}, _record_type(data, hint, where), where)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _decode_union(data, hint, where)
    if origin is Literal:
        if not any(data == a and type(data) is type(a) for a in args):
            raise ConfigError(f"{where}: must be one of {', '.join(map(repr, args))}, got {data!r}.")
        return data
    if origin in (tuple, list):
        return _decode_sequence(data, origin, args, where)
    if origin is dict or origin is Mapping:
        if not isinstance(data, dict):
            raise _wrong(where, "an object", data)
        return {key: _decode(item, args[1], f"{where}.{key}") for key, item in data.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _decode_record(data, hint, where)
    if _protocol(hint) is not None:
        raise _wrong(where, "an object", data)
    return _decode_scalar(data, hint, where)


def _record_type(data: dict[str, JSON], hint: Any, where: str) -> Any:
    """The dataclass of encoded `data`, whose declared type is `hint`; None if `hint` has no dataclass."""
    protocol, records, kind = _protocol(hint), _records(hint), data.get("type")
    if protocol is not None:
        if not isinstance(kind, str):
            raise ConfigError(f"{where}.type: must be a class such as package.module:ClassName, got {kind!r}.")
        cls = resolve(kind, allowed(), where)
        lacking = sorted(_protocol_members(protocol) - set(dir(cls)) - {f.name for f in dataclasses.fields(cls)})
        if lacking:
            raise ConfigError(f"{where}: `{kind}` is no {protocol.__name__}: it has no {', '.join(lacking)}.")
        return cls
    if len(records) > 1:
        named = {r.__name__: r for r in records}
        if kind not in named:
            raise ConfigError(f"{where}.type: must be one of {', '.join(named)}, got {kind!r}.")
        return named[kind]
    return records[0] if records else None


def _protocol_members(protocol: type) -> set[str]:
    """The public attributes and methods that a Protocol requires."""
    bases = [base for base in protocol.__mro__ if getattr(base, "_is_protocol", False)]
    names = {name for base in bases for name in (*vars(base), *base.__annotations__)}
    return {name for name in names if not name.startswith("_")}


def _decode_scalar(data: JSON, hint: Any, where: str) -> Any:
    if hint is float:
        if isinstance(data, str) and data in _NON_FINITE:
            return _NON_FINITE[data]
        if isinstance(data, (int, float)) and not isinstance(data, bool):
            return float(data)
        raise _wrong(where, "a number", data)
    if hint is type(None):
        if data is None:
            return None
        raise _wrong(where, "null", data)
    if hint in (int, bool, str):
        if type(data) is hint:
            return data
        raise _wrong(where, {int: "a whole number", bool: "true or false", str: "text"}[hint], data)
    if hint is Path:
        if isinstance(data, str):
            return Path(data)
        raise _wrong(where, "a path", data)
    if hint in (dict, list, tuple):
        return hint(data)
    raise ConfigError(f"{where}: fields of type {hint!r} cannot be read from JSON.")


def _decode_sequence(data: JSON, origin: Any, args: tuple[Any, ...], where: str) -> Any:
    if not isinstance(data, list):
        raise _wrong(where, "a list", data)
    if origin is list or args[-1] is Ellipsis:
        return origin(_decode(item, args[0], f"{where}[{i}]") for i, item in enumerate(data))
    if args == ((),):
        args = ()
    if len(data) != len(args):
        raise ConfigError(f"{where}: must have {len(args)} values, got {len(data)}: {data!r}.")
    return tuple(_decode(item, arg, f"{where}[{i}]") for i, (item, arg) in enumerate(zip(data, args, strict=True)))


def _decode_union(data: JSON, hint: Any, where: str) -> Any:
    records = _records(hint)
    if records and isinstance(data, dict):
        cls = _record_type(data, hint, where)
        tagged = len(records) > 1
        return _decode_record({k: v for k, v in data.items() if not tagged or k != "type"}, cls, where)
    # Only `float` accepts values of another type (whole numbers), so it is tried last. The order of the others is free.
    members = sorted((m for m in _members(hint) if m is not type(None)), key=lambda m: m is float)
    if data is None and len(members) < len(_members(hint)):
        return None
    if len(members) == 1:
        return _decode(data, members[0], where)
    for member in members:
        with contextlib.suppress(ConfigError):
            return _decode(data, member, where)
    raise ConfigError(f"{where}: {data!r} fits none of: {hint}.")


def _decode_record(data: JSON, cls: type, where: str) -> Any:
    if not isinstance(data, dict):
        raise _wrong(where or cls.__name__, "an object", data)
    hints, fields = _hints(cls), {f.name: f for f in dataclasses.fields(cls) if f.init}
    prefix = f"{where}." if where else ""
    for key in data:
        if key not in fields:
            raise ConfigError(f"{prefix}{key}: no such setting.", hint=_suggest(str(key), sorted(fields)))
    for name, f in fields.items():
        if name not in data and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{prefix}{name}: missing.")
    values = {name: _decode(data[name], hints[name], f"{prefix}{name}") for name in fields if name in data}
    try:
        return cls(**values)
    except RaymineError:
        raise
    except (TypeError, ValueError) as error:
        # Classes of other packages raise other errors than ConfigError.
        raise ConfigError(f"{where or cls.__name__}: {error}") from error


def _wrong(where: str, expected: str, data: JSON) -> ConfigError:
    return ConfigError(f"{where}: must be {expected}, got {data!r}.")

"""Seeded damage to files: bytes, JSON documents, and files replaced by something else.

Every function takes a `random.Random`, so that a case is repeated by its seed alone.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

# JSON values that are valid where another value is expected, and harmful to a reader that does not check them.
NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 2**64, 0.5, -0.0, 1e-320, 1e300, -1e308,
    float("nan"), float("inf"), float("-inf"), "", "0", "1e5", "nan", "/", "..", "../..", "~nosuchuser", "a" * 5000,
    "images/\0.png", "\ud800", "\u202e", "C:\\x.png", "/dev/zero", "/etc/passwd", [], {}, [[]], [None], [[1.0]],
    [1, 2, 3], {"": None}, [[1e308] * 4] * 4, [[0.0] * 4] * 4, [["x"] * 4] * 4,
)  # fmt: skip

# Tokens that Python's own JSON writer does not write.
RAW_TOKENS = ("9" * 5000, "-" + "1" * 400, "1e999", "-1E400", "[" * 3000 + "]" * 3000, "1" + "0" * 25)


def mutated_bytes(data: bytes, random: Random) -> bytes:
    """`data` with flipped bytes, cut short, with a piece overwritten, removed, repeated or inserted, or emptied."""
    at = random.randrange(len(data) + 1)
    length = random.choice((1, 2, 4, 8, 64))
    kind = random.choice(("flip", "flip", "cut", "fill", "remove", "repeat", "insert", "append", "empty"))
    if kind == "flip":
        changed = bytearray(data)
        for _ in range(random.choice((1, 1, 3, 30)) if data else 0):
            changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
        return bytes(changed)
    if kind == "cut":
        return data[:at]
    if kind == "fill":
        value = random.choice((b"\0", b"\xff", b"\x7f", b"\x80"))
        return data[:at] + value * len(data[at : at + length]) + data[at + length :]
    if kind == "remove":
        return data[:at] + data[at + length :]
    if kind == "repeat":
        return data[: at + length] + data[at:]
    if kind == "insert":
        return data[:at] + random.randbytes(length) + data[at:]
    return data + random.randbytes(length) if kind == "append" else b""


def mutated_json(document: Any, random: Random) -> bytes:
    """The text of `document` after one to three edits: values replaced, removed, repeated, exchanged or nested."""
    document = copy.deepcopy(document)
    raw: dict[str, str] = {}
    for _ in range(random.choice((1, 1, 2, 3))):
        document = _edited(document, random, raw)
    text = json.dumps(document)
    for mark, token in raw.items():
        text = text.replace(json.dumps(mark), token)
    data = text.encode()
    return b"\xef\xbb\xbf" + data if random.random() < 0.02 else data


def _edited(document: Any, random: Random, raw: dict[str, str]) -> Any:
    """`document` after one edit at a random place; the top of the document is one of the places."""
    home = [document]
    holder, key = random.choice(_places(home))
    kind = random.choice(("value", "value", "value", "value", "raw", "remove", "repeat", "exchange", "wrap"))
    if kind == "value":
        holder[key] = copy.deepcopy(random.choice(NASTY))
    elif kind == "raw":
        mark = f"@raw{len(raw)}@"
        raw[mark] = random.choice(RAW_TOKENS)
        holder[key] = mark
    elif kind == "remove" and holder is not home:
        del holder[key]
    elif kind == "repeat" and isinstance(holder[key], list):
        holder[key] = holder[key] * random.choice((2, 3))
    elif kind == "exchange":
        other, place = random.choice(_places(home))
        # Values are copied: one value may contain the other.
        holder[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(holder[key])
    else:
        holder[key] = random.choice(([holder[key]], {"value": holder[key]}, str(holder[key])))
    return home[0]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in `value`, containers at all depths."""
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    found = [(value, key) for key, _ in items]
    for _, item in items:
        if isinstance(item, (dict, list)):
            found += _places(item)
    return found


def replace_file(path: Path, random: Random) -> str:
    """Put something else in the place of a file, and return what: a pipe, a folder, a link that cannot be followed."""
    path.unlink()
    kinds: dict[str, Callable[[], object]] = {
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "link to itself": lambda: path.symlink_to(path.name),
        "dangling link": lambda: path.symlink_to("nothing"),
        "link to a folder": lambda: path.symlink_to("."),
        "link to a device": lambda: path.symlink_to("/dev/zero"),
        "empty file": path.touch,
        "nothing": lambda: None,
    }
    kind = random.choice(list(kinds))
    kinds[kind]()
    return kind


def restore_file(path: Path, data: bytes) -> None:
    """Make `path` a regular file with `data` again, whatever is in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or path.exists():
        path.unlink()
    path.write_bytes(data)

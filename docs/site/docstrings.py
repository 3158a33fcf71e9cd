"""Docstrings of raymine as reStructuredText, for the API reference of the site.

A docstring is plain text: paragraphs, indented examples, names in single backticks, and lines `name: what it is` for
arguments and fields, whose further lines may be indented. Paragraphs stay paragraphs, lines about names become a list,
indented blocks become examples, and no other character has a special meaning.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass
from textwrap import dedent

_CODE = re.compile(r"(`[^`]+`)")
_SPECIAL = re.compile(r"([\\*|_`<>])")
_ITEM = re.compile(r"([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*)( \[[^\]]*\])?: ")
_LIST_LIKE = re.compile(r"\(?\w{1,4}[.)] |[-+#.:\[>]|\W+$")


def to_rst(lines: list[str], names: Collection[str] = ()) -> list[str]:
    """Lines of a docstring without its indentation -> lines of reStructuredText.

    names: the arguments or fields that the docstring may describe.
    """
    out: list[str] = []
    for block in _blocks(lines):
        if block[0].startswith("    "):
            out += ["::", "", *(f"    {line}" for line in dedent("\n".join(block)).splitlines()), ""]
            continue
        for item, text in _entries(block, names):
            out += [f"* {item} {_marked(text)}" if item else _paragraph(text)]
            if not item:
                out.append("")
        out.append("")
    return out


def described_names(thing: object) -> set[str]:
    """The names that a docstring of `thing` may describe: arguments of a callable, fields of a dataclass."""
    found: set[str] = set()
    if callable(thing):
        with contextlib.suppress(TypeError, ValueError):  # what is built in has no signature
            found |= set(inspect.signature(thing).parameters)
    if isinstance(thing, type):
        found |= set(getattr(thing, "__annotations__", ()))
        found |= {each.name for each in fields(thing)} if is_dataclass(thing) else set()
    return found


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Runs of lines without an empty line; an indented line after one that is not begins no block of its own."""
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []


def _entries(block: list[str], names: Collection[str]) -> Iterator[tuple[str, str]]:
    """(what is described, text) of the items of a block; what stands before the first is described by ""."""
    item, text = "", []
    for line in block:
        found = _ITEM.match(line)
        if found and all(name in names for name in found[1].split(", ")):
            if text:
                yield item, " ".join(text)
            item = "**" + found[1].replace("_", r"\_") + "**" + _marked(found[2] or "") + ":"
            text = [line[found.end() :].strip()]
        elif line.startswith("- "):
            if text:
                yield item, " ".join(text)
            item, text = "\\ ", [line[2:].strip()]
        else:
            text.append(line.strip())
    yield item, " ".join(text)


def _marked(text: str) -> str:
    """Text with code in double backticks, and everything else as it is."""
    parts = _CODE.split(text.replace(" -> ", " → "))
    return "".join(f"``{p[1:-1]}``" if _CODE.fullmatch(p) else _SPECIAL.sub(r"\\\1", p) for p in parts)


def _paragraph(text: str) -> str:
    """A paragraph that is not taken for a list, whatever it begins with."""
    return ("\\ " if _LIST_LIKE.match(text) else "") + _marked(text)

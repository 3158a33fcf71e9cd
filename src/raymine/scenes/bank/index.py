"""The files that describe a pack: the index of a finished pack, and the journal of a pack that is being written.

A pack is a flat file of uint8. Each image has a slot: its pixels row by row, with 3 or 4 channels, followed by its mask
if it has one, with one byte per pixel. A finished pack becomes valid when the index is replaced, which is atomic. The
journal gets a line after each finished slot; slots that it does not list are written again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raymine.files import UnreadableFile, atomic_file, parse_json, read_json, write_json
from raymine.scenes._cache import REMEDY
from raymine.scenes.bank.sources import Source, Stamp

FORMAT = 1
INDEX, JOURNAL = "index.json", "journal.jsonl"


@dataclass(frozen=True)
class Slot:
    """Position and shape of an image in a pack. Offsets are in bytes."""

    offset: int
    height: int
    width: int
    channels: int
    masked: bool

    @property
    def pixel_bytes(self) -> int:
        return self.height * self.width * self.channels

    @property
    def nbytes(self) -> int:
        return self.pixel_bytes + (self.height * self.width if self.masked else 0)

    @property
    def mask_offset(self) -> int:
        """Offset of the mask; -1 if there is none."""
        return self.offset + self.pixel_bytes if self.masked else -1


@dataclass(frozen=True)
class Content:
    """Content of a slot: sha256 of the image and mask files, their stamp when read, and crc32 of the slot's bytes."""

    digest: str
    mask_digest: str
    stamp: Stamp
    crc: int


@dataclass(frozen=True)
class Index:
    """A finished pack: its file name in the folder, and the name, slot and content of each image."""

    pack: str
    names: tuple[str, ...]
    slots: tuple[Slot, ...]
    contents: tuple[Content, ...]

    @property
    def nbytes(self) -> int:
        return pack_bytes(self.slots)

    def digest(self) -> str:
        """sha256 in hex of contents and sizes: equal for the same images in the same order, in any location."""
        parts = [
            [c.digest, c.mask_digest, s.height, s.width, s.channels]
            for c, s in zip(self.contents, self.slots, strict=True)
        ]
        return hashlib.sha256(json.dumps([FORMAT, parts]).encode()).hexdigest()


def pack_bytes(slots: Sequence[Slot]) -> int:
    """Size in bytes of the pack that holds `slots`."""
    return max((slot.offset + slot.nbytes for slot in slots), default=0)


def lay_out(sources: Sequence[Source], channels: Sequence[int]) -> tuple[Slot, ...]:
    """The slots of the sources, one after another, in their order."""
    slots, offset = [], 0
    for source, depth in zip(sources, channels, strict=True):
        slots.append(Slot(offset, source.height, source.width, depth, source.mask is not None))
        offset += slots[-1].nbytes
    return tuple(slots)


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def write_index(folder: Path, index: Index) -> None:
    """Replaces the index in `folder` atomically."""
    body = {"format": FORMAT, **asdict(index)}
    stated = {"checksum": _checksum(json.loads(json.dumps(body))), **body}
    write_json(folder / INDEX, stated, "write the index of the image bank", hint=REMEDY)


def read_index(folder: Path) -> Index | None:
    """The index in `folder`; None if there is none. ValueError if the index or its pack is damaged."""
    if not os.path.lexists(folder / INDEX):
        return None
    try:
        body = read_json(folder / INDEX)
    except UnreadableFile as error:
        raise ValueError(f"its index {error.what.rstrip('.')}") from error
    try:
        stated = body.pop("checksum")
        if stated != _checksum(body) or body["format"] != FORMAT:
            raise ValueError("its index does not match its checksum or format")
        index = Index(
            body["pack"],
            tuple(body["names"]),
            tuple(Slot(**slot) for slot in body["slots"]),
            tuple(_content(content) for content in body["contents"]),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError("its index lacks what an index has") from error
    try:
        size = (folder / index.pack).stat().st_size
    except OSError as error:
        raise ValueError("its pack is missing") from error
    if size != index.nbytes:
        raise ValueError(f"its pack has {size} bytes instead of {index.nbytes}")
    return index


def _content(value: dict[str, Any]) -> Content:
    return Content(value["digest"], value["mask_digest"], tuple(map(int, value["stamp"])), int(value["crc"]))


class PackJournal:
    """The record of a pack that is being written. pack: its file name. done: the finished slots and their content.

    The first line stores a digest of the layout (`plan`). A journal of another layout is replaced.
    """

    def __init__(self, folder: Path, names: Sequence[str], slots: Sequence[Slot]) -> None:
        plan = hashlib.sha256(json.dumps([FORMAT, list(names), [asdict(s) for s in slots]]).encode()).hexdigest()
        self.path = folder / JOURNAL
        self.done: dict[int, Content] = {}
        self.pack = ""
        self._read(plan, len(slots))
        if not self.pack or not (folder / self.pack).exists():
            self.pack, self.done = f"pack-{os.urandom(8).hex()}.u8", {}
            # The header is one line of JSON, like the records after it.
            with atomic_file(self.path, "write the journal of the image bank", hint=REMEDY) as file:
                file.write(json.dumps({"plan": plan, "pack": self.pack}).encode())
        with open(self.path, "rb+") as begun:
            # Start a new line, so that a line cut short by a kill does not merge with the next record.
            begun.seek(0, os.SEEK_END)
            begun.write(b"\n")
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115

    def _read(self, plan: str, count: int) -> None:
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return
        records = [record for record in map(_parsed, lines) if record]
        if not records or records[0].get("plan") != plan:
            return
        self.pack = records[0]["pack"]
        for record in records[1:]:
            if 0 <= record["slot"] < count:
                self.done[record["slot"]] = _content(record)

    def add(self, slot: int, content: Content) -> None:
        """Records that a slot is finished. Call it after the bytes of the slot are written."""
        self.done[slot] = content
        self._file.write(json.dumps({"slot": slot, **asdict(content)}).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        value = parse_json(line)
    except UnreadableFile:
        return {}
    return value if isinstance(value, dict) else {}

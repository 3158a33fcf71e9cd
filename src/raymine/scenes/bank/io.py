"""Reads and writes bytes of a pack at an offset.

It does not use a memory map, because pages written through a map count as resident memory.
"""

from __future__ import annotations

import os
import threading
import zlib
from pathlib import Path

import numpy as np

from raymine.scenes.bank.decode import Decoded
from raymine.scenes.bank.index import Slot

PIECE = 4 << 20  # bytes written, copied or checked at a time
_BINARY = getattr(os, "O_BINARY", 0)
_SEEKING = threading.Lock()


class WriteError(Exception):
    """The pack could not be written; `cause` is the OSError. A separate class, as reading images raises OSError too."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def open_for_reading(pack: Path) -> int:
    """A file descriptor for reading a pack; the caller closes it."""
    return os.open(pack, os.O_RDONLY | _BINARY)


def open_pack(path: Path, size: int) -> int:
    """A file descriptor for writing a pack of `size` bytes, which is created or continued; the caller closes it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _BINARY, 0o644)
    except OSError as error:
        raise WriteError(error) from error
    try:
        os.ftruncate(descriptor, size)
    except OSError as error:
        os.close(descriptor)
        raise WriteError(error) from error
    return descriptor


def slot_crc(descriptor: int, slot: Slot) -> int:
    """crc32 of the bytes of a slot, read from the file."""
    crc = 0
    for at in range(0, slot.nbytes, PIECE):
        crc = zlib.crc32(_read(descriptor, min(PIECE, slot.nbytes - at), slot.offset + at), crc)
    return crc


def copy_slot(old: int, source: Slot, descriptor: int, target: Slot) -> int:
    """Copies a slot between packs. Returns the crc32 of its bytes, or -1 if the slots differ in size."""
    if source.nbytes != target.nbytes:
        return -1
    crc = 0
    for at in range(0, source.nbytes, PIECE):
        piece = _read(old, min(PIECE, source.nbytes - at), source.offset + at)
        crc = zlib.crc32(piece, crc)
        _write(descriptor, piece, target.offset + at)
    return crc


def write_decoded(descriptor: int, slot: Slot, decoded: Decoded) -> int:
    """Writes pixels and mask, and returns the crc32 of the slot. In strips, as a whole copy would double the memory."""
    crc, row = 0, slot.width * slot.channels
    rows = max(PIECE // row, 1)
    for top in range(0, slot.height, rows):
        strip = decoded.picture.crop((0, top, slot.width, min(top + rows, slot.height))).tobytes()
        crc = zlib.crc32(strip, crc)
        _write(descriptor, strip, slot.offset + top * row)
    if decoded.mask is not None:
        mask = np.ascontiguousarray(decoded.mask).tobytes()
        crc = zlib.crc32(mask, crc)
        _write(descriptor, mask, slot.mask_offset)
    return crc


def _read(descriptor: int, count: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, count, offset)
    with _SEEKING:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, count)


def _write(descriptor: int, data: bytes, offset: int) -> None:
    """Writes all of `data`, in several calls if needed."""
    view = memoryview(data)
    try:
        while view:
            if hasattr(os, "pwrite"):
                wrote = os.pwrite(descriptor, view, offset)
            else:
                with _SEEKING:
                    os.lseek(descriptor, offset, os.SEEK_SET)
                    wrote = os.write(descriptor, view)
            view, offset = view[wrote:], offset + wrote
    except OSError as error:
        raise WriteError(error) from error

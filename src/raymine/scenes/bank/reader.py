"""Reading a finished pack within a memory budget.

A pack that fits the budget is memory-mapped: its pages become resident when they are read, and stay. A larger pack is
not mapped, because reading one pixel of a mapped file makes up to 2 MB around it resident: 4,096 random pixels of a
3 GB pack made 2.8 GB resident. Its pixels are read one by one instead, 1.8 microseconds each where the system has them
cached, and nothing becomes resident.
"""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

import numpy as np


class PackReader:
    """The bytes of a pack, read-only. mapped: whether the pack is memory-mapped."""

    def __init__(self, path: Path, budget: int) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        self._seeking = threading.Lock()
        size = os.fstat(self._file.fileno()).st_size
        # Without `pread` (on Windows) the pack is always mapped; Windows reclaims such pages by itself.
        self.mapped = size <= budget or not hasattr(os, "pread")
        self._map: mmap.mmap | None = None
        self._data = np.empty(0, np.uint8)
        if self.mapped:
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            self._data = np.frombuffer(self._map, np.uint8)
            if hasattr(mmap, "MADV_WILLNEED"):
                self._map.madvise(mmap.MADV_WILLNEED)
        elif hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), 0, size, os.POSIX_FADV_RANDOM)

    def gather(
        self,
        table: np.ndarray,
        image: np.ndarray,
        y: np.ndarray,
        x: np.ndarray,
        rgba: np.ndarray,
        weight: np.ndarray,
    ) -> int:
        """As `gather_pixels`: fills rgba [R, 4] and weight [R]. Returns -1, or the first row that was not filled."""
        from raymine.scenes.bank.gather import gather_pixels, read_pixels

        if self.mapped:
            return int(gather_pixels(self._data, table, image, y, x, rgba, weight))
        return int(read_pixels(self._file.fileno(), table, image, y, x, rgba, weight))

    def read_into(self, offset: int, out: np.ndarray) -> None:
        """Fills `out` (contiguous uint8) with the bytes from `offset` on. Plain reads make no page resident."""
        view = out.reshape(-1).data
        while len(view):
            got = self._read_at(offset, view)
            if not got:
                raise OSError(f"{self._file.name} is shorter than its index says")
            offset, view = offset + got, view[got:]

    def _read_at(self, offset: int, view: memoryview) -> int:
        """Reads some bytes from `offset` on. Several threads read at once, where the system can (not on Windows)."""
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [view], offset)
        with self._seeking:
            self._file.seek(offset)
            return self._file.readinto(view) or 0

    def close(self) -> None:
        """Closes the file. Closing it again has no effect."""
        self._data = np.empty(0, np.uint8)
        if self._map is not None:
            self._map.close()
        self._file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed

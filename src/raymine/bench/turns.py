"""Turns of benchmark processes that share a machine: one trains, the others open images, compile and wait."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock


@contextlib.contextmanager
def turn(file: Path | None) -> Iterator[None]:
    """Context in which no other process is in its turn of the same lock file. No file: no waiting."""
    if file is None:
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file):
        yield

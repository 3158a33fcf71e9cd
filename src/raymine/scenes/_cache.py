"""The cache folder of raymine, and a lock so that several processes can share it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from raymine.errors import ResourceError
from raymine.files import cache_path as cache_path
from raymine.files import file_lock, resource_error

REMEDY = "Set RAYMINE_CACHE to a folder that you can write to and that has enough space."


def cache_root() -> Path:
    """The cache folder, created and checked to be writable. What is complete in it can be used without this check."""
    return writable_folder(cache_path())


def writable_folder(folder: Path) -> Path:
    """`folder` as an absolute path, created if needed. ResourceError if it cannot be created or written."""
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Permission bits do not show read-only mounts or quotas, so the check writes a real file.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ResourceError(
            f"The cache folder {folder} cannot be written: {error.strerror or error}.", hint=REMEDY
        ) from error
    return folder


def storage_error(error: OSError, folder: Path, what: str) -> ResourceError:
    """The ResourceError to show to the user for an OSError while writing `what` below `folder`."""
    return resource_error(error, f"write {what}", folder, hint=REMEDY)


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Context that holds an exclusive lock on the file `path` (see `files.file_lock`).

    on_wait: called once if another process holds the lock for more than 0.25 seconds.
    """
    from filelock import Timeout

    lock = file_lock(path)
    try:
        lock.acquire(timeout=0.25)
    except Timeout:
        if on_wait is not None:
            on_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()

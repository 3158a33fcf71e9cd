"""Where raymine keeps what it can make again, and how two processes share it: a root folder and a lock."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from raymine.errors import ResourceError
from raymine.files import file_lock, resource_error

REMEDY = "Set RAYMINE_CACHE to a folder that you can write to and that has enough space."


def cache_root() -> Path:
    """The folder for everything cached: `$RAYMINE_CACHE`, else `~/.cache/raymine`. It exists and is writable."""
    chosen = os.environ.get("RAYMINE_CACHE", "").strip()
    return writable_folder(Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "raymine")


def writable_folder(folder: Path) -> Path:
    """`folder` as an absolute path, made if need be; ResourceError when it cannot be made or written."""
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Permission bits do not tell about read-only mounts or quotas, so the test is a real file.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ResourceError(
            f"The cache folder {folder} cannot be written: {error.strerror or error}.", hint=REMEDY
        ) from error
    return folder


def storage_error(error: OSError, folder: Path, what: str) -> ResourceError:
    """The user's view of an OSError met while writing `what` below `folder`."""
    return resource_error(error, f"write {what}", folder, hint=REMEDY)


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Holds an exclusive lock on the file `path`, as `files.file_lock` describes it.

    `on_wait` is called once if another process holds the lock for longer than a moment.
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

"""One owner per run folder: an advisory lock that the operating system drops when its process ends, however it ends."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from raymine.errors import RunError, option
from raymine.files import resource_error, try_lock

# Someone who only looks whether a lock is held holds it for an instant; that must not look like an owner.
_PATIENCE = 0.2


@dataclass(frozen=True)
class Owner:
    """Who holds a lock: process id and since when (ISO 8601, UTC)."""

    pid: int
    since: str


class FileLock:
    """A held lock on `path`. Made by `acquire`; `release` it, or end the process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @staticmethod
    def acquire(path: Path) -> FileLock:
        """Take the lock and write our process id into it; `RunError` naming the owner when a live process has it."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
        except OSError as error:
            raise resource_error(error, "lock the run", path) from error
        try:
            if not _lock_within(descriptor, _PATIENCE):
                raise _in_use(path)
            text = json.dumps({"pid": os.getpid(), "since": datetime.now(timezone.utc).isoformat(timespec="seconds")})
            os.ftruncate(descriptor, 0)
            os.write(descriptor, text.encode())
        except OSError as error:
            os.close(descriptor)
            raise resource_error(error, "lock the run", path) from error
        except RunError:
            os.close(descriptor)
            raise
        return FileLock(path, descriptor)

    def release(self) -> None:
        """Give the lock back; the file stays, because removing it would race with the next owner."""
        if self._descriptor is not None:
            # An empty file says that the last owner left in good order.
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def is_locked(path: Path) -> bool:
    """Whether a live process holds the lock at this moment."""
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    except OSError:
        return False
    try:
        return not try_lock(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def owner_of(path: Path) -> Owner | None:
    """What the lock file says about its owner; None where it is empty or unreadable."""
    try:
        data = json.loads(path.read_bytes())
        return Owner(int(data["pid"]), str(data["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def require_free(path: Path) -> None:
    """`RunError` naming the owner when a live process holds the lock; takes nothing."""
    if is_locked(path):
        raise _in_use(path)


def _lock_within(descriptor: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not try_lock(descriptor):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _in_use(path: Path) -> RunError:
    owner = owner_of(path)
    who = f"process {owner.pid} (since {owner.since})" if owner else "another process"
    stop = f", stop it (kill {owner.pid})," if owner else ", stop it"
    return RunError(
        f"The run {path.parent} is in use by {who}.",
        hint=f"Wait for it{stop} or give another {option('out')} folder.",
    )

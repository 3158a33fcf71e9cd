"""The lock of a run folder. The operating system releases it when the process ends, however it ends.

The lock is on a file. The file `<name>-owner` beside it says who holds the lock, because others may be unable to read
a locked file.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from raymine.errors import RunError, option
from raymine.files import UnreadableFile, file_lock, read_json, resource_error, write_json

if TYPE_CHECKING:
    from filelock import BaseFileLock

# A process that only tests a lock holds it for a moment. Wait this many seconds, so as not to take it for an owner.
_PATIENCE = 0.2


@dataclass(frozen=True)
class Owner:
    """The owner of a lock: its process id, and since when it holds the lock (ISO 8601, UTC)."""

    pid: int
    since: str


class RunLock:
    """A held lock on `path`. `acquire` takes it; `release`, or the end of the process, frees it."""

    def __init__(self, path: Path, lock: BaseFileLock) -> None:
        self.path = path
        self._lock = lock

    @staticmethod
    def acquire(path: Path) -> RunLock:
        """Take the lock and record our process id; `RunError` with the owner if another process holds it."""
        from filelock import Timeout

        lock = file_lock(path)
        try:
            lock.acquire(timeout=_PATIENCE, poll_interval=0.02)
        except Timeout:
            raise _in_use(path) from None
        except OSError as error:
            raise resource_error(error, "lock the run", path) from error
        try:
            owner = Owner(os.getpid(), datetime.now(timezone.utc).isoformat(timespec="seconds"))
            write_json(_owner_file(path), asdict(owner), "lock the run")
        except BaseException:
            lock.release()
            raise
        return RunLock(path, lock)

    def release(self) -> None:
        """Release the lock; releasing it twice does nothing."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                _owner_file(self.path).unlink()
            self._lock.release()


def is_locked(path: Path) -> bool:
    """Whether a live process holds the lock."""
    from filelock import Timeout

    if not os.path.exists(path):
        return False
    try:
        with file_lock(path).acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False


def owner_of(path: Path) -> Owner | None:
    """The recorded owner of the lock, which may have been killed since; None if there is no record."""
    try:
        data = read_json(_owner_file(path))
    except UnreadableFile:
        return None
    pid, since = (data.get("pid"), data.get("since")) if isinstance(data, dict) else (None, None)
    return Owner(pid, since) if isinstance(pid, int) and isinstance(since, str) else None


def is_lock_file(path: Path, lock: str) -> bool:
    """Whether `path` is one of the files of the lock named `lock`."""
    return path.name in (lock, _owner_file(Path(lock)).name)


def require_free(path: Path) -> None:
    """Raise `RunError` with the owner if a live process holds the lock. Does not take the lock."""
    if is_locked(path):
        raise _in_use(path)


def _owner_file(path: Path) -> Path:
    return path.with_name(f"{path.name}-owner")


def _in_use(path: Path) -> RunError:
    owner = owner_of(path)
    who = f"process {owner.pid} (since {owner.since})" if owner else "another process"
    stop = f", stop it (kill {owner.pid})," if owner else ", stop it"
    return RunError(
        f"The run {path.parent} is in use by {who}.",
        hint=f"Wait for it{stop} or give another {option('out')} folder.",
    )

"""Delete runs: a run folder is moved to a hidden folder `.trash` beside it, from where it can be taken back."""

from __future__ import annotations

import os
import time
from pathlib import Path

from raymine.errors import RunError
from raymine.files import resource_error
from raymine.run_files import LOCK, MANIFEST, is_run

from .lock import RunLock

TRASH = ".trash"


def move_to_trash(path: Path) -> Path:
    """Move a run to the trash and return where it is now. `RunError` if it is no run folder, a link, or in use."""
    if not is_run(path) or not path.is_dir():
        raise RunError(f"{path} is not a run folder: it has no {MANIFEST}. Nothing was deleted.")
    if path.is_symlink():
        raise RunError(
            f"{path} is a link. Nothing was deleted.", hint=f"Delete the run that it leads to: {path.resolve()}"
        )
    path = path.absolute()
    try:
        lock = RunLock.acquire(path / LOCK)
    except RunError as error:
        raise RunError(f"{error.message} Nothing was deleted.", hint="Wait for it, or stop it first.") from error
    trash = path.parent / TRASH
    target = trash / f"{path.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        trash.mkdir(exist_ok=True)
        number = 2
        while os.path.lexists(target):
            target, number = target.with_name(f"{target.name}-{number}"), number + 1
        os.rename(path, target)
    except OSError as error:
        raise resource_error(error, "delete the run", path) from error
    finally:
        lock.release()
    return target

"""Tags of a run. They are kept in its folder, in `tags.json`, so that a rebuilt index has them again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from raymine.errors import ConfigError, RunError
from raymine.files import UnreadableFile, file_lock, read_json, resource_error, write_json
from raymine.run_files import TAGS

_LOCK = f".{TAGS}.lock"
_PATIENCE = 30.0
_TAG = re.compile(r"[\w.+:-]{1,64}")


def read_tags(path: Path) -> tuple[str, ...]:
    """The tags of the run in `path`, sorted; none if there is no file of tags, or one that cannot be read."""
    try:
        found = read_json(path / TAGS)
    except UnreadableFile:
        return ()
    return tuple(sorted({tag for tag in found if isinstance(tag, str)})) if isinstance(found, list) else ()


def change_tags(path: Path, *, add: Collection[str] = (), remove: Collection[str] = ()) -> tuple[str, ...]:
    """Add and remove tags of a run, and return those that it has then. `ConfigError` for a name that is no tag.

    Several processes may change the tags of one run at once, also while it trains: none of the changes is lost.
    """
    for tag in add:
        if not _TAG.fullmatch(tag):
            raise ConfigError(
                f"A tag has up to 64 letters, digits and . _ + : -, got `{tag[:80]}`.", hint="Choose another name."
            )
    with _locked(path):
        tags = tuple(sorted({*read_tags(path), *add} - set(remove)))
        write_json(path / TAGS, list(tags), "write the tags")
    return tags


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Within the block no other process changes the tags of the run. A lock of their own, as one that trains has that
    of the run."""
    from filelock import Timeout

    lock = file_lock(path / _LOCK)
    try:
        lock.acquire(timeout=_PATIENCE, poll_interval=0.02)
    except Timeout:
        raise RunError(
            f"The tags of {path} are locked by another process, which has not changed them for {_PATIENCE:.0f} s.",
            hint="Wait for it, or stop it.",
        ) from None
    except OSError as error:
        raise resource_error(error, "lock the tags", path / _LOCK) from error
    try:
        yield
    finally:
        lock.release()

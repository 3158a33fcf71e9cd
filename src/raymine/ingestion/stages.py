"""What is finished of an ingest, so that the same command continues after it was stopped at any moment.

Work is done in a hidden folder beside the scene. Each stage has a marker with a key: a digest of the input and of all
options that the stage and those before it depend on. A stage with another key is done again. The scene folder appears
by one rename at the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from raymine.errors import ConfigError, ResourceError, option
from raymine.files import JSON, UnreadableFile, file_lock, obstacle, read_json, resource_error, write_json

SCHEMA = 1


def staging_of(out: Path) -> Path:
    """The folder that an unfinished ingest works in."""
    return out.parent / f".{out.name}.ingest"


class Finished(NamedTuple):
    """What a stage has stored, and the seconds that it took."""

    result: JSON
    seconds: float


class Stages:
    """The staging folder of one ingest. Its key depends on the stages that were asked for so far, in order."""

    def __init__(self, folder: Path, digest: str) -> None:
        self.folder = folder
        self._key = digest

    def path(self, name: str) -> Path:
        return self.folder / name

    def result(self, name: str, options: Mapping[str, JSON]) -> Finished | None:
        """What a finished stage has stored; None if it must be done. It also moves the key on to this stage."""
        text = json.dumps([SCHEMA, self._key, name, dict(options)], sort_keys=True)
        self._key = hashlib.sha256(text.encode()).hexdigest()
        try:
            found = read_json(self._marker(name))
        except UnreadableFile:
            return None
        if not isinstance(found, dict) or found.get("key") != self._key:
            return None
        return Finished(found["result"], found["seconds"])

    def finish(self, name: str, result: JSON, seconds: float) -> None:
        """Mark the stage that `result` was last asked of as finished. seconds: how long it took."""
        content = {"key": self._key, "result": result, "seconds": seconds}
        write_json(self._marker(name), content, "write the state of the ingest")

    def begin(self, name: str, reset: Callable[[], None]) -> None:
        """Begin the stage that `result` was last asked of. What an earlier process did for it stays, if it had the same
        key; else `reset` removes it."""
        note = self.path(f"{name}.begun")
        with contextlib.suppress(OSError):
            if note.read_text() == self._key:
                return
        reset()
        note.write_text(self._key)

    def _marker(self, name: str) -> Path:
        return self.path(f"{name}.json")


@contextlib.contextmanager
def open_stages(out: Path, digest: str) -> Iterator[Stages]:
    """Yield the stages for a scene folder that does not exist yet. The staging folder stays if the block fails.

    `ConfigError` if it belongs to other photos, or if another process is at work in it.
    """
    from filelock import Timeout

    folder = staging_of(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = file_lock(folder / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ConfigError(
                f"Another process is already making {out}.", hint=f"Wait for it, or choose another {option('out')}."
            ) from None
    except OSError as error:
        raise resource_error(error, "prepare the scene", folder) from error
    try:
        _require_same_input(folder, out, digest)
        yield Stages(folder, digest)
    except OSError as error:
        raise resource_error(error, "make the scene", folder) from error
    finally:
        lock.release()


def give_up(folder: Path) -> None:
    """Note that no poses were found: other photos may take this staging folder. The same ones keep what is done."""
    (folder / "given-up").touch()


def _require_same_input(folder: Path, out: Path, digest: str) -> None:
    note = folder / "input.json"
    try:
        found = read_json(note)
    except UnreadableFile:
        found = None
    same = isinstance(found, dict) and found.get("digest") == digest
    if found is None or (not same and (folder / "given-up").exists()):
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != "lock":
                entry.unlink()
        write_json(note, {"digest": digest}, "write the state of the ingest")
    elif not same:
        raise ConfigError(
            f"{option('out')}: an unfinished ingest of other photos would become {out}.",
            hint=f"Choose another folder, or remove {folder} to give that ingest up.",
        )


def require_free(out: Path) -> None:
    """Raise if `out` cannot become a scene folder: it holds something, or something is in the way."""
    fault = obstacle(out, folder=True)
    if fault is not None:
        raise ResourceError(f"{option('out')}: {out} {fault}.", hint="Choose another folder.")
    if out.is_dir() and any(out.iterdir()):
        raise ConfigError(
            f"{option('out')}: {out} exists and holds something else; it is not changed.",
            hint="Choose another folder, or remove it first.",
        )


def publish(scene: Path, out: Path) -> None:
    """Give the finished folder `scene` its name. Nothing that is there is replaced."""
    require_free(out)
    if out.is_dir():
        out.rmdir()
    os.rename(scene, out)


def fresh_folder(path: Path) -> Path:
    """An empty folder at `path`."""
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(parents=True)
    return path

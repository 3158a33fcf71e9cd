"""`RunDir`: create, open, lock and read run folders, and refuse to write to any other folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from raymine.config import ForeignTypeError, RunConfig, from_json, keep_earlier_digests, model_digests, to_json
from raymine.errors import ConfigError, RunError, option
from raymine.files import (
    JSON,
    UnreadableFile,
    is_temp,
    obstacle,
    read_json,
    remove_stale_temps,
    resource_error,
    write_json,
)
from raymine.run_files import CHECKPOINTS, CONFIG, EVENTS, IMAGES, LOCK, MANIFEST, METRICS, is_run

from .lock import RunLock, is_lock_file, require_free
from .manifest import Manifest, upgraded


class RunDir:
    """A run folder. `create` and `open_locked` lock it for writing; `open` gives it for reading only."""

    def __init__(self, path: Path, lock: RunLock | None = None) -> None:
        self.path = path
        self._lock = lock
        self._identity = _identity(path)
        self._config: JSON = None
        self._manifest: Manifest | None = None

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def metrics(self) -> Path:
        return self.path / METRICS

    @property
    def events(self) -> Path:
        return self.path / EVENTS

    @staticmethod
    def create(path: Path | None, *, root: Path, stem: str, config: JSON, manifest: Manifest) -> RunDir:
        """Create and lock a run folder: `path`, or the next free `<root>/<stem>-<n>` if it is None.

        `mkdir` is atomic, so two processes never get the same folder. `manifest.name` is set to the folder's name.
        """
        chosen = _make_folder(path) if path is not None else _make_next(root, stem)
        run = RunDir(chosen, RunLock.acquire(chosen / LOCK))
        if is_run(chosen):
            # Another process has created a run here between our check and our lock.
            run.close()
            raise _already_a_run(chosen)
        run._write_config(config)
        run.write_manifest(manifest)
        return run

    @staticmethod
    def open(path: Path) -> RunDir:
        """Open a run folder for reading; `RunError` if `path` is not one."""
        if not path.exists():
            raise RunError(f"There is no run folder {path}.", hint="`raymine runs` lists those there are.")
        if not is_run(path):
            raise RunError(f"{path} is not a run folder: it has no {MANIFEST}.", hint="`raymine runs` lists them.")
        return RunDir(path)

    @staticmethod
    def open_locked(path: Path) -> RunDir:
        """Open and lock a run folder; `RunError` if another process uses it. Temporary files are removed."""
        RunDir.open(path)
        run = RunDir(path, RunLock.acquire(path / LOCK))
        for folder in (path, run.checkpoints):
            remove_stale_temps(folder)
        return run

    def read_config_json(self) -> JSON:
        """The stored config as JSON data."""
        return _read_json(self.path / CONFIG)

    def read_config(self) -> RunConfig:
        """The stored config, migrated if an earlier raymine wrote it; `RunError` if it does not fit this version.

        `ForeignTypeError` if it uses a class of a package that is not allowed (see `config.allowing`).
        """
        try:
            return RunConfig.from_json(self.read_config_json())
        except ForeignTypeError:
            raise
        except ConfigError as error:
            version = self.read_manifest().environment.raymine
            raise RunError(
                f"{self.path / CONFIG} cannot be used by this raymine: {error.message}",
                hint=f"The run was made by raymine {version}.",
            ) from error

    def read_digests(self) -> tuple[str, ...]:
        """The config digests that checkpoints of this run may have."""
        return model_digests(self.read_config_json())

    def write_config(self, config: JSON) -> None:
        """Replace the stored config. Existing checkpoints still fit the run."""
        self._write_config(keep_earlier_digests(config, self.read_config_json()))

    def _write_config(self, config: JSON) -> None:
        write_json(self.path / CONFIG, config, "write the config")
        self._config = config

    def read_manifest(self) -> Manifest:
        """The stored manifest; `RunError` if it is damaged."""
        try:
            return from_json(Manifest, upgraded(_read_json(self.path / MANIFEST)))
        except ConfigError as error:
            raise RunError(
                f"{self.path / MANIFEST} is damaged: {error.message}",
                hint=f"Restore it from a copy, or train again with another {option('out')}.",
            ) from error

    def write_manifest(self, manifest: Manifest) -> None:
        write_json(self.path / MANIFEST, {**to_json(manifest), "name": self.path.name}, "write the manifest")
        self._manifest = manifest

    def write_images(self, digests: dict[str, str]) -> None:
        """Record the digest of each training image, by its name, so that a changed one can be named."""
        write_json(self.path / IMAGES, digests, "write the digests of the images")

    def is_lost(self) -> bool:
        """Whether the folder, its config or its manifest was removed or moved since this object was made."""
        return _identity(self.path) != self._identity or not all((self.path / n).is_file() for n in (CONFIG, MANIFEST))

    def recreate(self) -> None:
        """Make a lost folder again: locked, with config and manifest as this object wrote them last.

        `RunError` if another folder is at its path by now, with content that is not ours.
        """
        if _identity(self.path) != self._identity:
            if is_run(self.path) or (not self.path.is_dir() and self.path.exists()) or _foreign_content(self.path):
                raise RunError(
                    f"The run folder {self.path} was removed or moved while it trained, and something else is there "
                    "now. The model could not be saved."
                )
            self.close()
            self._lock = RunLock.acquire(_make_folder(self.path) / LOCK)
            self._identity = _identity(self.path)
        self._write_config(self._config)
        if self._manifest is not None:
            self.write_manifest(self._manifest)

    def close(self) -> None:
        """Release the lock, if this object holds it."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a folder from another of the same name; None if there is no folder."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino


def check_target(path: Path, *, resume: bool) -> bool:
    """Check the folder for a run before anything is created: True if it holds a run to resume, False for a new run.

    A new run needs a path that does not exist or an empty folder. `RunError` for an existing run without `resume`, a
    run in use, a file, or a folder with other content.
    """
    fault = obstacle(path, folder=True)
    if fault:
        raise RunError(f"{option('out', path)} {fault}; a run needs a folder.", hint=f"Give another {option('out')}.")
    if is_run(path):
        require_free(path / LOCK)
        if not resume:
            raise _already_a_run(path)
        return True
    if _foreign_content(path):
        raise RunError(
            f"{option('out', path)} exists and is not a raymine run; it is left untouched.",
            hint=f"Give another {option('out')}, or an empty folder.",
        )
    return False


def slug(text: str) -> str:
    """`text` as part of a folder name."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.") or "scene"


def _already_a_run(path: Path) -> RunError:
    return RunError(
        f"{option('out', path)} already holds a run.",
        hint=f"Continue it with {option('resume', True)}, or give another {option('out')}.",
    )


def _foreign_content(path: Path) -> bool:
    """Whether a folder contains anything else than the remains of a run that was killed before it had a manifest."""
    inside = path.iterdir() if path.is_dir() else ()
    return any(p.name != CONFIG and not is_lock_file(p, LOCK) and not is_temp(p) for p in inside)


def _make_folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise resource_error(error, "create the run folder", path) from error
    return path


def _made(path: Path) -> bool:
    """Create a folder; False if it exists already. Of several processes only one gets True."""
    try:
        os.mkdir(path)
    except FileExistsError:
        return False
    return True


def _make_next(root: Path, stem: str) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True)
        pattern = re.compile(re.escape(stem) + r"-(\d+)")
        taken = [int(m.group(1)) for m in (pattern.fullmatch(p.name) for p in root.iterdir()) if m]
        number = max(taken, default=0) + 1
        while not _made(root / f"{stem}-{number}"):
            number += 1
        return root / f"{stem}-{number}"
    except OSError as error:
        fault = obstacle(root, folder=True)
        if fault:
            hint = f"Run raymine in another folder, or give {option('out')}."
            raise RunError(f"{root} {fault}; runs are kept in a folder.", hint=hint) from error
        raise resource_error(error, "create the run folder", root / stem) from error


def _read_json(path: Path) -> JSON:
    hint = f"The run folder is incomplete; train again with another {option('out')}."
    if not path.exists():
        raise RunError(f"{path} is missing.", hint=hint)
    try:
        return read_json(path)
    except UnreadableFile as error:
        raise RunError(f"{path} {error.what}", hint=hint) from error

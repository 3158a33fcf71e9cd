"""The index of runs. Run folders are the truth: a row counts only while the files of its run are as they were.

`train` registers every run. Listing compares the stamp of each folder with its row, reads the folders that have
changed, and writes their rows again. So a deleted, damaged or outdated index repairs itself, and one that cannot be
used at all costs time and nothing else.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields, replace
from pathlib import Path

from raymine.errors import RunError, did_you_mean, option
from raymine.files import finite_or_none
from raymine.run_files import is_run

from .store import DamagedIndex, IndexFile, Row
from .summary import RunSummary, stamp_of, summarise_run

_PATIENCE_OF_TRAINING = 5.0
"""Seconds that a run waits for the index."""

_UNUSABLE = (OSError, sqlite3.Error, DamagedIndex)


def register(path: Path, index: IndexFile | None = None) -> str:
    """Write the row of a run. Never raises: returns why the index could not be written, or ""."""
    index = index or IndexFile(patience=_PATIENCE_OF_TRAINING)
    try:
        index.put([_row(path, stamp_of(path), summarise_run(path))], root=path.absolute().parent)
    except (*_UNUSABLE, RunError) as error:
        return f"the run index {index.path} could not be written: {error}"
    return ""


def list_runs(root: Path, index: IndexFile | None = None) -> list[RunSummary]:
    """Every run in `root` and in its subfolders, oldest first; [] if `root` does not exist."""
    return _listed(_run_folders(root), index or IndexFile(), root) if root.is_dir() else []


def list_all(index: IndexFile | None = None) -> list[RunSummary]:
    """Every run of the index that still exists, and all others in folders where runs were made, oldest first."""
    index = index or IndexFile()
    known = _rows(index)
    gone = [path for path in known if not is_run(Path(path))]
    folders = {Path(path) for path in known if path not in gone}
    for root in index.roots():
        folders |= set(_run_folders(root))
    if gone:
        _attempt(lambda: index.remove(gone))
    return _listed(folders, index, None)


def rebuild(roots: Iterable[Path], index: IndexFile | None = None) -> list[RunSummary]:
    """Read every run folder again, in `roots` and wherever runs were made, and write the index anew.

    `RunError` if it cannot be written.
    """
    index = index or IndexFile()
    folders = {Path(path) for path in _rows(index) if is_run(Path(path))}
    for root in (*roots, *index.roots()):
        folders |= {path.absolute() for path in _run_folders(root)}
    try:
        index.remove(list(_rows(index)))
        found = _listed(folders, index, None)
        for root in roots:
            if root.is_dir():
                index.put([], root=root)
    except _UNUSABLE as error:
        raise RunError(
            f"The run index {index.path} cannot be written: {error}.",
            hint="Runs are listed without it. Remove it, or set RAYMINE_CACHE to a folder that can be written.",
        ) from error
    return found


def find_run(text: str, root: Path) -> Path:
    """The run folder that a user means: a path, the name of a run in `root`, or that of the only run so called."""
    for path in (Path(text), root / text):
        if is_run(path):
            return path
    every = list_all()
    named = [run.path for run in every if run.name == text]
    if len(named) == 1:
        return named[0]
    if named:
        raise RunError(
            f"{len(named)} runs have the name {text}: {', '.join(str(path) for path in named[:4])}.",
            hint="Give the folder of the one that you mean.",
        )
    if Path(text).exists():
        raise RunError(f"{text} is not a run folder: it has no manifest.json.", hint="`raymine runs` lists them.")
    meant = did_you_mean(text, [run.name for run in every])
    raise RunError(
        f"There is no run {text}.{meant}", hint=f"`raymine runs` with {option('all', True)} lists those there are."
    )


def _listed(folders: Iterable[Path], index: IndexFile, root: Path | None) -> list[RunSummary]:
    known, found, fresh = _rows(index), [], []
    for path in folders:
        stamp = stamp_of(path)
        row = known.get(_key(path))
        stored = _summary(row, path) if row is not None and row.stamp == stamp else None
        # Whether a run is alive is told by its lock alone, which leaves no stamp.
        sure = stored is not None and stored.status not in ("running", "crashed")
        summary = stored if stored is not None and sure else summarise_run(path)
        if summary != stored:
            fresh.append(_row(path, stamp, summary))
        found.append(summary)
    if fresh:
        _attempt(lambda: index.put(fresh, root=root))
    return sorted(found, key=lambda run: (run.started, run.name))


def _rows(index: IndexFile) -> dict[str, Row]:
    try:
        return {row.path: row for row in index.rows()}
    except _UNUSABLE:
        return {}


def _attempt(work: Callable[[], None]) -> None:
    """Write to the index, if it can be written. Listing does not need it."""
    try:
        work()
    except _UNUSABLE:
        return


def _key(path: Path) -> str:
    """The folder of a run as text. A name that is not valid UTF-8 has lone surrogates, which SQLite cannot store."""
    return os.fsencode(path.absolute()).decode(errors="backslashreplace")


def _row(path: Path, stamp: str, summary: RunSummary) -> Row:
    return Row(_key(path), stamp, json.dumps(finite_or_none({**asdict(summary), "path": None})))


def _summary(row: Row, path: Path) -> RunSummary | None:
    """The summary of a row; None if an earlier or a later version wrote it."""
    try:
        data = json.loads(row.summary)
        summary = RunSummary(**{**data, "path": path, "tags": tuple(data["tags"])})
    except (ValueError, TypeError, KeyError):
        return None
    return replace(summary, name=path.name) if data.keys() == {field.name for field in fields(RunSummary)} else None


def _run_folders(root: Path) -> list[Path]:
    """The run folders in `root` and in its subfolders."""
    found = []
    for path in _subfolders(root):
        found += [path] if is_run(path) else [inner for inner in _subfolders(path) if is_run(inner)]
    return found


def _subfolders(path: Path) -> list[Path]:
    """Folders in `path` that are not hidden; [] if it cannot be read."""
    try:
        names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    except OSError:
        return []
    return [path / name for name in names if os.path.isdir(path / name)]

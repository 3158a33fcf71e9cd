"""The SQLite file of the run index: `runs.sqlite` in the cache folder, one row for each run folder.

Many processes may write to it, on several machines over a network file system. So it uses SQLite's rollback journal and
not its write-ahead log, which needs shared memory. Connections are short; a busy file is tried again until a time has
passed. The rows are copies of what the run folders say: a damaged file is moved away and filled again from the folders.
`run-roots.txt` beside it lists the folders that hold runs, one line each, for that purpose.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from raymine.files import cache_path, file_lock

_SCHEMA = 1
_PATIENCE = 30.0
"""Seconds to wait for other writers."""
_PAUSE = 0.02

_T = TypeVar("_T")


@dataclass(frozen=True)
class Row:
    """A row of the index. path: the absolute run folder. stamp: see `summary.stamp_of`. summary: JSON."""

    path: str
    stamp: str
    summary: str


class DamagedIndex(Exception):
    """The file is no index: damaged, or of another program or version."""


class IndexFile:
    """The index in `folder`, by default the cache folder. Methods raise `sqlite3.Error` or `OSError` if it is unusable.

    patience: seconds to wait for other writers.
    """

    def __init__(self, folder: Path | None = None, patience: float = _PATIENCE) -> None:
        folder = cache_path() if folder is None else folder
        self.path = folder / "runs.sqlite"
        self._roots = folder / "run-roots.txt"
        self._patience = patience

    def put(self, rows: Iterable[Row], *, root: Path | None = None) -> None:
        """Add rows, or replace those of the same run. root: a folder of runs to remember."""
        values = [(row.path, row.stamp, row.summary) for row in rows]
        if root is not None:
            self._remember(root)
        self._write(lambda c: c.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", values))

    def remove(self, paths: Iterable[str]) -> None:
        """Remove the rows of these run folders."""
        values = [(path,) for path in paths]
        self._write(lambda c: c.executemany("DELETE FROM runs WHERE path = ?", values))

    def rows(self) -> list[Row]:
        """All rows, in no particular order; [] if there is no index yet."""
        if not self.path.exists():
            return []
        return self._retried(lambda c: [Row(*found) for found in c.execute("SELECT path, stamp, summary FROM runs")])

    def roots(self) -> list[Path]:
        """The remembered folders of runs that still exist."""
        try:
            lines = self._roots.read_bytes().decode(errors="surrogateescape").splitlines()
        except OSError:
            return []
        return [path for path in map(Path, dict.fromkeys(lines)) if path.is_dir()]

    def discard(self) -> None:
        """Move a damaged file away, so that the next write makes a new one. Only one process does so."""
        with file_lock(self.path.with_suffix(".lock")):
            try:
                with self._connected() as connection:
                    connection.execute("SELECT count(stamp) FROM runs").fetchone()
                    if connection.execute("PRAGMA quick_check").fetchone() == ("ok",):
                        return
            except (sqlite3.DatabaseError, DamagedIndex):
                pass
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.path, self.path.with_suffix(".damaged"))
            for leftover in ("-journal", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{self.path}{leftover}")

    def _remember(self, root: Path) -> None:
        line = os.fsencode(f"{root.absolute()}\n")
        with contextlib.suppress(OSError):
            if self._roots.exists() and line in self._roots.read_bytes().splitlines(keepends=True):
                return
            self._roots.parent.mkdir(parents=True, exist_ok=True)
            # One `write` of a whole line, so that lines of several processes do not mix.
            descriptor = os.open(self._roots, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)

    def _write(self, work: Callable[[sqlite3.Connection], object]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)

        def transaction(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            try:
                work(connection)
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

        self._retried(transaction)

    def _retried(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Call `work` with a connection. Tries again while the file is busy, and once after a damaged file was moved
        away."""
        deadline, repaired = time.monotonic() + self._patience, False
        while True:
            try:
                with self._connected() as connection:
                    return work(connection)
            except (sqlite3.DatabaseError, DamagedIndex) as error:  # noqa: PERF203
                # A busy file, or a network file system that lost a lock for a moment.
                if isinstance(error, sqlite3.OperationalError):
                    passing = any(word in str(error) for word in ("locked", "busy", "disk I/O"))
                    if not passing or time.monotonic() > deadline:
                        raise
                    time.sleep(_PAUSE)
                elif repaired:
                    raise
                else:
                    repaired = True
                    self.discard()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, timeout=self._patience, isolation_level=None)
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _SCHEMA):
                raise DamagedIndex(f"version {version}")
            if version == 0:
                connection.execute("PRAGMA journal_mode = DELETE")
                connection.execute("BEGIN IMMEDIATE")
                columns = "path TEXT PRIMARY KEY, stamp TEXT NOT NULL, summary TEXT NOT NULL"
                connection.execute(f"CREATE TABLE IF NOT EXISTS runs ({columns})")
                connection.execute(f"PRAGMA user_version = {_SCHEMA}")
                connection.execute("COMMIT")
            yield connection
        finally:
            connection.close()

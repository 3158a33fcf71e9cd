"""The logs of a run: one JSON object a line, appended, readable at any moment.

`metrics.jsonl` holds what training measured, `events.jsonl` what happened to the run. A row is one `write` of one whole
line, so a killed process leaves at most a cut last line, which readers drop and the next writer removes. When a run
resumes from step s, metric rows later than s are removed first: the file then equals that of a run never interrupted.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from raymine.errors import RunError
from raymine.files import JSON, atomic_file, finite_or_none, resource_error

Row = dict[str, JSON]


@dataclass(frozen=True)
class Repair:
    """What `repair` did to a log: rows kept, rows removed as later than the step, unreadable lines removed."""

    kept: int
    later: int
    unreadable: int


class JsonlWriter:
    """Appends rows to a log. Opening it removes a cut last line left by a killed process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            _drop_cut_line(path)
            self._descriptor: int | None = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644
            )
        except OSError as error:
            raise resource_error(error, "open the log", path) from error

    def write(self, row: Row) -> None:
        """Append one row; NaN and infinity become null. On a full disk the log keeps its last whole line."""
        if self._descriptor is None:
            raise RunError(f"The log {self.path} is already closed.")
        line = (json.dumps(finite_or_none(row), ensure_ascii=False, allow_nan=False) + "\n").encode()
        start = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, line)
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        except OSError as error:
            os.ftruncate(self._descriptor, start)
            raise resource_error(error, "write the log", self.path) from error

    def sync(self) -> None:
        """Force the rows so far onto the disk, so that they are there whenever a later checkpoint is."""
        if self._descriptor is not None:
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                raise resource_error(error, "write the log", self.path) from error

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_rows(path: Path) -> list[Row]:
    """All whole rows of a log, oldest first; [] where there is no log. A cut last line is dropped silently.

    An unreadable line with readable ones after it is real damage and raises `RunError` with its line number.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"Cannot read the log {path}: {error.strerror or error}.") from error
    lines = text.split(b"\n")
    rows: list[Row] = []
    # `split` leaves b"" after a final newline; anything else there is the cut line of a killed writer.
    for number, line in enumerate(lines[:-1], start=1):
        row = _parse(line)
        if row is None:
            raise RunError(
                f"{path}, line {number} is not a JSON object: {line[:60]!r}.",
                hint="Delete that line, or resume the run, which removes it.",
            )
        rows.append(row)
    return rows


def repair(path: Path, last_step: int) -> Repair:
    """Remove rows with `step` > `last_step` and unreadable lines, atomically; leaves a good file untouched."""
    if not path.exists():
        return Repair(0, 0, 0)
    kept: list[bytes] = []
    later = unreadable = 0
    lines = path.read_bytes().split(b"\n")
    for line in lines[:-1]:
        row = _parse(line)
        if row is None:
            unreadable += 1
        elif _step_of(row) > last_step:
            later += 1
        else:
            kept.append(line + b"\n")
    cut = lines[-1] != b""
    if later or unreadable or cut:
        with atomic_file(path, "clean the log") as file:
            file.write(b"".join(kept))
    return Repair(len(kept), later, unreadable + int(cut))


def _step_of(row: Row) -> int:
    step = row.get("step")
    return step if isinstance(step, int) else -1


def _parse(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except (UnicodeDecodeError, ValueError):
        return None
    return row if isinstance(row, dict) else None


def _drop_cut_line(path: Path) -> None:
    """Cut the file after its last newline. Reads back from the end, so that a long log costs nothing."""
    if not path.exists():
        return
    with open(path, "rb+") as file:
        end = file.seek(0, os.SEEK_END)
        position = end
        while position > 0:
            start = max(0, position - 4096)
            file.seek(start)
            newline = file.read(position - start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position != end:
            file.truncate(position)

"""The logs of a run: files of JSON lines that can be read while they are written.

`metrics.jsonl` holds measurements of training, `events.jsonl` events of the run. Each row is written by one `write` of
a whole line, so a killed process leaves at most one incomplete last line. Readers ignore it, and the next writer
removes it. When a run resumes from step s, metric rows after s are removed first, so the file equals that of a run that
was never interrupted.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from raymine.errors import RunError
from raymine.files import JSON, UnreadableFile, atomic_file, finite_or_none, parse_json, read_file, resource_error

Row = dict[str, JSON]


@dataclass(frozen=True)
class Repair:
    """What `repair` did: the number of rows kept, of rows removed because they were too late, of unreadable lines."""

    kept: int
    later: int
    unreadable: int


class JsonlWriter:
    """Appends rows to a log. Opening it removes an incomplete last line that a killed process left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if os.path.lexists(path) and not os.path.isfile(path):
            raise _not_a_log(path, "is not a file.")
        try:
            _drop_cut_line(path)
            self._descriptor: int | None = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644
            )
        except OSError as error:
            raise resource_error(error, "open the log", path) from error

    def write(self, row: Row) -> None:
        """Append one row; NaN and infinity become null. If the disk is full, the log keeps its complete lines only."""
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
        """Flush the rows to disk. Called before a checkpoint is saved, so that no checkpoint is ahead of its log."""
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
    """All complete rows of a log, oldest first; [] if there is no log. An incomplete last line is ignored.

    Any other unreadable line is damage and raises `RunError` with its line number.
    """
    lines = _read_lines(path)
    rows: list[Row] = []
    # After a final newline, `split` gives b"". Anything else there is an incomplete line of a killed writer.
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
    """Atomically remove rows with `step` > `last_step` and unreadable lines. An intact file is not touched."""
    kept: list[bytes] = []
    later = unreadable = 0
    lines = _read_lines(path)
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


def _read_lines(path: Path) -> list[bytes]:
    """The lines of a log; after its last newline comes b"" or an incomplete line. [b""] if there is no log."""
    if not path.exists():
        return [b""]
    try:
        return read_file(path).split(b"\n")
    except UnreadableFile as error:
        raise _not_a_log(path, error.what) from error


def _not_a_log(path: Path, what: str) -> RunError:
    return RunError(f"The log {path} {what}", hint="Move it away; the run can go on without it.")


def _step_of(row: Row) -> float:
    step = row.get("step")
    return step if isinstance(step, int | float) else -1


def _parse(line: bytes) -> Row | None:
    try:
        row = parse_json(line)
    except UnreadableFile:
        return None
    return row if isinstance(row, dict) else None


def _drop_cut_line(path: Path) -> None:
    """Truncate the file after its last newline. Searches from the end, so a long log costs no more than a short one."""
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

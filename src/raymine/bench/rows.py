"""What the benchmarks `step` and `ops` share: their progress callback, and the file to which they append rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from raymine.config import to_json
from raymine.errors import RunError, option
from raymine.files import obstacle, resource_error

StageProgress = Callable[[str, float, float], None]
"""Called with (stage, done, total)."""


def require_rows_file(path: Path | None) -> None:
    """Raise `RunError` before a benchmark starts if rows could not be appended to `path`. No path: do nothing."""
    fault = None if path is None else obstacle(path, folder=False)
    if fault:
        raise RunError(f"{option('out', path)} {fault}; rows are appended to a file.", hint="Give a file name.")


def append_rows(path: Path | None, rows: Iterable[Any]) -> None:
    """Append rows (dataclasses or dictionaries) to a file of JSON lines, created if needed. No path: do nothing."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(to_json(row)) + "\n" for row in rows)
    except OSError as error:
        raise resource_error(error, "write the benchmark rows", path) from error

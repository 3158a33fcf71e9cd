"""What benchmarks of single rows share: how they tell of their progress, and the file that they add to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from raymine.config import to_json
from raymine.files import resource_error

StageProgress = Callable[[str, float, float], None]
"""Told what is going on, how much of it is done and how much there is."""


def append_rows(path: Path | None, rows: Iterable[Any]) -> None:
    """Add rows (dataclasses or dictionaries) to a file of JSON lines, made if there is none; nothing without a path."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(to_json(row)) + "\n" for row in rows)
    except OSError as error:
        raise resource_error(error, "write the benchmark rows", path) from error

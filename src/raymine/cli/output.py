"""Where words go: results to stdout, everything else to stderr, so that `--json` leaves one document on stdout."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, TimeRemainingColumn
from rich.table import Table

from raymine.progress_bar import ProgressBar

Callback = Callable[[int, int], None]

# A pipe has no width; rich would assume 80 columns and cut paths in two.
_PIPE_WIDTH = 160


def messages() -> Console:
    """The console for progress and messages: stderr."""
    return Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else _PIPE_WIDTH)


def results() -> Console:
    """The console for what was asked for: stdout."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def say(text: str) -> None:
    """One message line. Text is taken literally: brackets in a path are not markup."""
    messages().print(escape(text), soft_wrap=True)


def warn(text: str) -> None:
    """One warning line."""
    messages().print(f"[yellow]warning:[/yellow] {escape(text)}", soft_wrap=True)


def emit_json(document: Any) -> None:
    """Print one JSON document on stdout; NaN and infinity become null, since JSON has neither."""
    print(json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | bool | None) else str(value)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> Table:
    """A plain table; the columns named in `right` are aligned to the right. Cells are taken literally.

    Where the console is narrow, cells are folded, but not in the columns of `right`: those are numbers.
    """
    made = Table(title=title or None, title_justify="left")
    for column in columns:
        number = column in right
        made.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in rows:
        made.add_row(*(escape(cell) for cell in row))
    return made


@contextmanager
def progress_bar(what: str) -> Iterator[Callback]:
    """A bar on stderr; the block gets a `callback(done, total)`. Not a terminal: one line when it is done."""
    console = messages()
    if not console.is_terminal:
        state = [0]

        def count(done: int, total: int) -> None:
            state[0] = done

        yield count
        if state[0]:
            console.print(escape(f"{what}: {state[0]} done"))
        return
    bar = ProgressBar(console, MofNCompleteColumn(), TimeRemainingColumn())
    try:
        bar.show(what, 0, None)
        yield partial(bar.show, what)
    finally:
        bar.close()


def number(value: float | None, digits: int = 2) -> str:
    """A number for a table; a dash where there is none."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """Seconds for people: 7.3 s, 4 min 10 s, 2 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(count: float) -> str:
    """Bytes for people, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"

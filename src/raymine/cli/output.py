"""Terminal output: results go to stdout, everything else to stderr. With `--json`, stdout has one document only.

Both streams are those of `raymine.terminal` while a command runs: no text and no closed terminal stops it.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, TimeRemainingColumn
from rich.table import Table

from raymine.progress_bar import ProgressBar
from raymine.quantities import duration as duration
from raymine.quantities import size as size

Callback = Callable[[int, int], None]

# A pipe has no width. rich would assume 80 columns and break paths.
_PIPE_WIDTH = 160


def messages() -> Console:
    """The console for progress and messages: stderr."""
    return Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else _PIPE_WIDTH)


def results() -> Console:
    """The console for results: stdout."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def say(text: str) -> None:
    """Print one message line. Text is printed literally: brackets in a path are not markup."""
    messages().print(escape(text), soft_wrap=True)


def warn(text: str) -> None:
    """Print one warning line."""
    messages().print(f"[yellow]warning:[/yellow] {escape(text)}", soft_wrap=True)


def emit_json(document: Any) -> None:
    """Print one JSON document on stdout. NaN and infinity become null, because JSON has neither.

    Characters that stdout cannot encode become JSON escapes.
    """
    plain = _plain(document)
    text = json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(plain, indent=2, allow_nan=False)
    print(text)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | bool | None) else str(value)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> Table:
    """A table. The columns named in `right`, which hold numbers, are right-aligned. Cells are printed literally.

    If the console is too narrow, cells are folded, but never in the columns of `right`.
    """
    made = Table(title=title or None, title_justify="left")
    for column in columns:
        number = column in right
        made.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in rows:
        made.add_row(*(escape(cell) for cell in row))
    return made


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on stderr, on a terminal alone, that something is being waited for."""
    console = messages()
    if not console.is_terminal:
        yield
        return
    with console.status(escape(f"{what} ...")):
        yield


@contextmanager
def progress_bar(what: str) -> Iterator[Callback]:
    """Show a progress bar on stderr; yields a `callback(done, total)`. Without a terminal: one line at the end."""
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
    """A number as text for a table; a dash for None and NaN."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def shortened(text: str) -> str:
    """Text for a table, with digests and commits in it cut to 12 digits."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{20,}\b", r"\1", text)


def took(total: float, parts: Mapping[str, float]) -> None:
    """Print how long a command took, and its parts in seconds. What is left of `total` is the loading before them."""
    loading = max(0.0, total - sum(parts.values()))
    stages = ", ".join(f"{name} {duration(seconds)}" for name, seconds in {"loading": loading, **parts}.items())
    say(f"Took {duration(total)}: {stages}.")

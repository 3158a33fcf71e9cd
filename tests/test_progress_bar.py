"""The progress bar: literal text, closing, and reuse after closing."""

from __future__ import annotations

import io

from rich.console import Console
from rich.progress import MofNCompleteColumn

from raymine.progress_bar import ProgressBar, text_column


def on_terminal() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=True, width=120, color_system=None), text


def test_title_and_text_are_shown_without_markup() -> None:
    console, text = on_terminal()
    bar = ProgressBar(console, text_column(), MofNCompleteColumn())
    bar.show("Loading [bold]x", 1, 4, "[red] 1 of 4")
    assert "Loading [bold]x" in text.getvalue()
    assert "[red] 1 of 4" in text.getvalue()
    bar.show("Loading [bold]x", 3, None)
    assert bar.done == 3
    bar.close()
    assert "3/4" in text.getvalue(), "the total stays when none is given"


def test_closing_twice_or_before_the_first_show_writes_nothing() -> None:
    console, text = on_terminal()
    bar = ProgressBar(console)
    bar.close()
    assert text.getvalue() == ""
    bar.show("Loading", 0, None)
    bar.close()
    closed = text.getvalue()
    bar.close()
    assert text.getvalue() == closed


def test_a_closed_bar_can_be_shown_again() -> None:
    console, text = on_terminal()
    bar = ProgressBar(console, text_column())
    bar.show("Loading", 2, 2)
    bar.close()
    assert bar.done == 0
    bar.show("Training", 0.5, 1.0)
    assert bar.done == 0.5
    bar.close()
    assert text.getvalue().rindex("Training") > text.getvalue().rindex("Loading")

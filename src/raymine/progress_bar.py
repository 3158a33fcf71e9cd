"""The progress bar that every command shows in a terminal: a title, the bar, and what stands behind it."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn


class ProgressBar:
    """One line at the bottom of a terminal, from the first `show` until `close`, which takes it off the screen.

    `columns` stand behind the bar: the `text` of each `show`, or what rich offers (time elapsed, M of N). Title and
    text are taken literally: brackets in a path are not markup. Whether to show a bar at all is the caller's choice,
    for instance by `console.is_terminal`.
    """

    def __init__(self, console: Console, *columns: ProgressColumn) -> None:
        layout = (TextColumn("{task.description}"), BarColumn(), *columns)
        self._progress = Progress(*layout, console=console, transient=True, refresh_per_second=4)
        self._task: TaskID | None = None

    @property
    def done(self) -> float:
        """What the latest `show` said is done; 0 while there is no bar on the screen."""
        return 0.0 if self._task is None else self._progress.tasks[0].completed

    def show(self, title: str, done: float, total: float | None, text: str = "") -> None:
        """`done` of `total`. A total of None is not known yet, or is what it was."""
        title, text = escape(title), escape(text)
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task(title, total=total, text=text)
        self._progress.update(self._task, description=title, completed=done, total=total, text=text)

    def close(self) -> None:
        """Take the bar off the screen, if it is there."""
        if self._task is not None:
            self._progress.stop()
            self._progress.remove_task(self._task)
            self._task = None


def text_column() -> ProgressColumn:
    """The column that holds the `text` of `ProgressBar.show`."""
    return TextColumn("{task.fields[text]}")

"""The progress bar of every command: a title, the bar, and further columns."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn
from rich.table import Column


class ProgressBar:
    """One line at the bottom of a terminal. The first `show` draws it, `close` removes it.

    `columns` stand to the right of the bar: `text_column()` for the `text` of each `show`, or any column of rich (time
    elapsed, M of N). Title and text are printed literally: brackets in a path are not markup. The caller decides
    whether to show a bar at all, for instance by `console.is_terminal`.
    """

    def __init__(self, console: Console, *columns: ProgressColumn) -> None:
        layout = (TextColumn("{task.description}"), BarColumn(bar_width=24), *columns)
        # Only a text column gives way in a narrow terminal, and only a table that expands lets it.
        expand = any(column.get_table_column().ratio for column in columns)
        self._progress = Progress(*layout, console=console, transient=True, refresh_per_second=4, expand=expand)
        self._task: TaskID | None = None

    @property
    def done(self) -> float:
        """The `done` of the latest `show`; 0 while no bar is on the screen."""
        return 0.0 if self._task is None else self._progress.tasks[0].completed

    def show(self, title: str, done: float, total: float | None, text: str = "") -> None:
        """Draw the bar at `done` of `total`. If `total` is None it stays as it was: at first, unknown."""
        title, text = escape(title), escape(text)
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task(title, total=total, text=text)
        self._progress.update(self._task, description=title, completed=done, total=total, text=text)

    def close(self) -> None:
        """Remove the bar from the screen, if there is one."""
        if self._task is not None:
            self._progress.stop()
            self._progress.remove_task(self._task)
            self._task = None


def text_column() -> ProgressColumn:
    """The column that holds the `text` of `ProgressBar.show`. A narrow terminal cuts its end off."""
    return TextColumn("{task.fields[text]}", table_column=Column(ratio=1, no_wrap=True))

"""A sink takes the metrics of a run to another program. `SinkThread` keeps it away from training.

Training only puts rows into a bounded queue and never waits for it. A sink that fails, hangs or falls behind is dropped
once and for all, and `problem` says why; nothing else happens to the run.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from raymine.files import JSON

ROWS = 4096
"""Rows that may wait for a sink: some minutes of training."""
PATIENCE = 5.0
"""Seconds that a run waits at its end for a sink."""


@dataclass(frozen=True)
class RunDescription:
    """A run, for a sink. settings: the leaves of its config by dotted name. step: the step that it continues from."""

    folder: Path
    scene: str
    recipe: str
    settings: dict[str, JSON]
    step: int = 0


class Sink(Protocol):
    """Where metrics go. All methods run on one thread, which is not that of training; they may raise anything."""

    def write(self, step: int, values: dict[str, float]) -> None:
        """Take the measurements of a step by name."""

    def close(self) -> None:
        """Write what is left."""


class SinkThread:
    """A sink on a thread of its own. No method waits, except `close` for at most `patience` seconds, or raises.

    name: for messages. make: opens the sink, on the thread, since that may take long or fail. rows: size of the queue.
    """

    def __init__(self, name: str, make: Callable[[], Sink], *, rows: int = ROWS, patience: float = PATIENCE) -> None:
        self.name = name
        self._make = make
        self._patience = patience
        self._rows: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(rows)
        self._problem = ""
        self._dropped = threading.Event()
        # A daemon thread: one that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name=f"raymine-{name}", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str:
        """Why the sink was dropped; empty while it works."""
        return self._problem

    def offer(self, step: int, values: dict[str, float]) -> None:
        """Hand a row to the sink, if it still works."""
        if self._dropped.is_set():
            return
        try:
            self._rows.put_nowait((step, values))
        except queue.Full:
            self._drop(f"does not keep up: {self._rows.maxsize} rows are waiting")

    def close(self) -> None:
        """Let the sink finish. It is left behind if it has not finished after `patience` seconds."""
        if not self._dropped.is_set():
            try:
                self._rows.put(None, timeout=self._patience)
            except queue.Full:
                self._drop(f"does not keep up: {self._rows.maxsize} rows are waiting")
                return
            self._thread.join(self._patience)
            if self._thread.is_alive():
                self._drop(f"did not finish within {self._patience:g} s")

    def _work(self) -> None:
        try:
            sink = self._make()
            while not self._dropped.is_set():
                row = self._rows.get()
                if row is None:
                    break
                sink.write(*row)
            sink.close()
        except BaseException as error:  # whatever a foreign package raises, SystemExit included
            self._drop(f"failed: {type(error).__name__}: {error}")

    def _drop(self, why: str) -> None:
        if not self._dropped.is_set():
            self._problem = why
            self._dropped.set()

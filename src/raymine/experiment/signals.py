"""SIGINT and SIGTERM stop training after the current burst of steps."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """While active, the first SIGINT or SIGTERM is stored in `received`; a second one ends the process immediately.

    This is safe, because every file of a run is written atomically. Python can install handlers in the main thread
    only; in other threads this class does nothing.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    @property
    def name(self) -> str:
        """The name of the received signal, such as SIGTERM; empty if there was none."""
        return "" if self.received is None else signal.Signals(self.received).name

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

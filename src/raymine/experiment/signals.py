"""SIGINT and SIGTERM as a request to stop in good order."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """While active, the first SIGINT or SIGTERM is remembered in `received`; the second ends the process at once.

    Ending at once is safe: every file of a run is written atomically. Outside the main thread Python cannot install
    handlers, and nothing is changed.
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
        """The name of the signal received, such as SIGTERM; empty when there was none."""
        return "" if self.received is None else signal.Signals(self.received).name

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

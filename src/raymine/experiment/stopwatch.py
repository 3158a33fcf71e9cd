"""Wall-clock seconds of a run by stage: what the person at the keyboard waits for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Literal

Stage = Literal[
    "start",
    "scene",
    "images",
    "pixel maps",
    "model",
    "kernels",
    "training",
    "evaluation",
    "checkpoints",
    "other",
]
"""start: the interpreter and its imports. kernels: waiting for kernels that are compiled or loaded, and capturing the
CUDA graph. other: what no stage counts, such as creating the run folder."""


class Stopwatch:
    """Counts the seconds of each stage. Stages may be nested; a second counts for the innermost stage only.

    started: the value of `now` at which the wall clock begins. first_step: `wall` when the first steps were done; None
    before that.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter, started: float | None = None) -> None:
        self._now = now
        self._started = now() if started is None else started
        self._seconds: dict[Stage, float] = {}
        self._stack: list[Stage] = []
        self.first_step: float | None = None
        self._last = now()
        if started is not None:
            self._seconds["start"] = self._last - started

    @classmethod
    def of_process(cls) -> Stopwatch:
        """A stopwatch that began with this process. Its first stage, `start`, ends now."""
        import psutil

        age = max(0.0, time.time() - psutil.Process().create_time())
        return cls(started=time.perf_counter() - age)

    @contextlib.contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        """Seconds within the block count for `name`."""
        self._count()
        self._stack.append(name)
        try:
            yield
        finally:
            self._count()
            self._stack.pop()

    def note_step(self) -> None:
        """Training steps were done. Sets `first_step` the first time."""
        if self.first_step is None:
            self.first_step = self.wall

    @property
    def wall(self) -> float:
        """Seconds since the beginning."""
        return self._now() - self._started

    def stages(self) -> dict[str, float]:
        """Seconds of each stage so far, in the order in which they began. They sum to `wall`."""
        self._count()
        return {str(name): seconds for name, seconds in self._seconds.items()}

    def _count(self) -> None:
        now = self._now()
        name: Stage = self._stack[-1] if self._stack else "other"
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now

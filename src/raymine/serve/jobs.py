"""The queue of views to render, and the one thread that renders them."""

from __future__ import annotations

import io
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from raymine.export import Abandoned

from .request import ViewRequest

Draw = Callable[[ViewRequest, Callable[[], bool]], np.ndarray]
"""A request, and whether it has become unwanted -> a picture [H, W, 3] uint8. Raises `Abandoned` if it has."""


class QueueFull(Exception):
    """No room for another request. seconds: after which there may be."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"try again in {seconds:.0f} s")
        self.seconds = seconds


class TooSlow(Exception):
    """The time limit passed. started: whether the picture was being rendered, rather than waiting."""

    def __init__(self, started: bool, seconds: float) -> None:
        super().__init__("the time limit passed")
        self.started, self.seconds = started, seconds


@dataclass
class _Job:
    request: ViewRequest
    deadline: float
    done: threading.Event = field(default_factory=threading.Event)
    started: bool = False
    cancelled: bool = False
    result: bytes | None = None
    error: BaseException | None = None


class RenderQueue:
    """Renders requests in the order of their arrival, one at a time, on a thread of its own.

    draw: renders a request. waiting: the most requests that may wait. seconds: from `render` to its result.
    """

    def __init__(self, draw: Draw, waiting: int, seconds: float) -> None:
        self._draw, self._most, self._seconds = draw, waiting, seconds
        self._jobs: deque[_Job] = deque()
        self._work = threading.Condition()
        self._closed = False
        self._mean = 0.1
        self.busy = False
        self._thread = threading.Thread(target=self._run, name="raymine-render", daemon=True)
        self._thread.start()

    @property
    def length(self) -> int:
        """Requests that wait."""
        return len(self._jobs)

    def render(self, request: ViewRequest) -> bytes:
        """The encoded picture of a request. Waits for its turn.

        Raises `QueueFull` if there is no room or the queue is closed, and `TooSlow` after the time limit.
        """
        job = _Job(request, time.monotonic() + self._seconds)
        with self._work:
            if self._closed or len(self._jobs) >= self._most:
                raise QueueFull(max(1.0, self._mean * (len(self._jobs) + 1)))
            self._jobs.append(job)
            self._work.notify()
        # The thread looks at the deadline before each piece; a piece may take a moment longer.
        if not job.done.wait(self._seconds + 5.0):
            job.cancelled = True
            raise TooSlow(job.started, self._wait_seconds())
        if job.error is not None:
            raise job.error
        assert job.result is not None
        return job.result

    def close(self, grace: float) -> None:
        """Take no more requests, and render those that wait for at most `grace` seconds."""
        end = time.monotonic() + grace
        with self._work:
            self._closed = True
            for job in self._jobs:
                job.deadline = min(job.deadline, end)
            self._work.notify()
        self._thread.join(grace + 5.0)

    def _wait_seconds(self) -> float:
        return max(1.0, self._mean * (len(self._jobs) + 1))

    def _run(self) -> None:
        while True:
            with self._work:
                while not self._jobs and not self._closed:
                    self._work.wait()
                if not self._jobs:
                    return
                job = self._jobs.popleft()
                self.busy = True
            try:
                self._do(job)
            finally:
                self.busy = False
                job.done.set()

    def _do(self, job: _Job) -> None:
        def unwanted() -> bool:
            return job.cancelled or time.monotonic() > job.deadline

        if unwanted():
            job.error = TooSlow(False, self._wait_seconds())
            return
        job.started, begin = True, time.monotonic()
        try:
            job.result = encode(self._draw(job.request, unwanted), job.request)
        except Abandoned:
            job.error = TooSlow(True, self._wait_seconds())
        except BaseException as error:
            job.error = error
        self._mean += 0.2 * (time.monotonic() - begin - self._mean)


def encode(picture: np.ndarray, request: ViewRequest) -> bytes:
    """A picture [H, W, 3] uint8 as PNG or JPEG."""
    out = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(picture))
    if request.format == "jpeg":
        image.save(out, format="JPEG", quality=request.quality)
    else:
        image.save(out, format="PNG", compress_level=1)
    return out.getvalue()

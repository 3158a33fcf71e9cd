"""Threads that work beside the caller, such as for the encoding of pictures while the next ones are rendered.

Threads help where the work releases Python's lock: NumPy on large arrays, zlib and Pillow, video encoders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from types import TracebackType
from typing import TypeVar

from raymine.machine import cores

Item = TypeVar("Item")
Made = TypeVar("Made")


def ahead(make: Callable[[Item], Made], items: Iterable[Item], count: int) -> Generator[Made, None, None]:
    """make(item) for each item, in order. A thread makes up to `count` of them before they are asked for.

    An error of `make` is raised where its result is asked for. Close the generator to stop early.
    """
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(1) as thread:
        try:
            for item in items:
                waiting.append(thread.submit(make, item))
                if len(waiting) > count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class Workers:
    """Runs jobs on threads, in a `with` block. A limited number of jobs is unfinished at a time.

    The first error of a job is raised in the thread that submits: by the next `submit`, by `finish`, or at the end of
    the block. If the block ends with an error, jobs that have not started are dropped. When the block has ended, no
    job runs any more.

    threads: None takes one per core. With one thread the jobs run in the order in which they were submitted.
    room: the largest sum of the sizes of unfinished jobs, in any unit. A job that is larger runs alone.
    """

    def __init__(self, threads: int | None = None, *, room: int | None = None) -> None:
        self.threads = cores() if threads is None else threads
        self._room = room
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="raymine-worker")
        # By order of submission.
        self._unfinished: dict[Future[object], int] = {}

    def submit(self, job: Callable[[], object], size: int = 1) -> None:
        """Run `job` on a thread. Waits while there is no room for it. size: see `room`."""
        while self._unfinished and self._is_full(size):
            wait(self._unfinished, return_when=FIRST_COMPLETED)
            self._collect()
        # The context holds how error messages name options.
        self._unfinished[self._pool.submit(copy_context().run, job)] = size

    def finish(self) -> None:
        """Wait until every job is done."""
        while self._unfinished:
            wait(self._unfinished, return_when=FIRST_COMPLETED)
            self._collect()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.finish()
        finally:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._unfinished.clear()

    def _is_full(self, size: int) -> bool:
        # Two jobs wait, so that a thread that has finished one finds the next.
        if len(self._unfinished) >= self.threads + 2:
            return True
        return self._room is not None and sum(self._unfinished.values()) + size > self._room

    def _collect(self) -> None:
        """Forget the jobs that are done; raise the error of the first one that has failed."""
        for job in [job for job in self._unfinished if job.done()]:
            del self._unfinished[job]
            job.result()

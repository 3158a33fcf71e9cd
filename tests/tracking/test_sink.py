"""Sinks that hang, fail, are slow or fill the disk never stall the caller."""

from __future__ import annotations

import errno
import threading
import time

from raymine.tracking import SinkThread


class Collecting:
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def write(self, step: int, values: dict[str, float]) -> None:
        self.rows.append((step, values))

    def close(self) -> None:
        self.closed = True


class Hanging(Collecting):
    def write(self, step: int, values: dict[str, float]) -> None:
        threading.Event().wait(60)


class FullDisk(Collecting):
    def write(self, step: int, values: dict[str, float]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


class Leaving(Collecting):
    def write(self, step: int, values: dict[str, float]) -> None:
        raise SystemExit(3)


def seconds_of(thread: SinkThread, rows: int) -> float:
    started = time.perf_counter()
    for step in range(rows):
        thread.offer(step, {"loss": 1.0})
    return time.perf_counter() - started


def test_rows_arrive_in_order_and_the_sink_is_closed() -> None:
    sink = Collecting()
    thread = SinkThread("mine", lambda: sink)
    for step in range(100):
        thread.offer(step, {"loss": float(step)})
    thread.close()
    assert [step for step, _ in sink.rows] == list(range(100))
    assert sink.closed
    assert thread.problem == ""


def test_hanging_sink_is_dropped_and_costs_microseconds() -> None:
    thread = SinkThread("mine", Hanging, rows=64, patience=0.2)
    assert seconds_of(thread, 1000) < 0.5
    assert thread.problem == "does not keep up: 64 rows are waiting"
    started = time.perf_counter()
    thread.close()
    assert time.perf_counter() - started < 1.0


def test_sink_that_hangs_at_the_end_is_left_behind() -> None:
    thread = SinkThread("mine", Hanging, patience=0.2)
    thread.offer(1, {})
    started = time.perf_counter()
    thread.close()
    assert time.perf_counter() - started < 2.0
    assert thread.problem == "did not finish within 0.2 s"


def test_failing_sinks_are_dropped_whatever_they_raise() -> None:
    def refuse() -> Collecting:
        raise ImportError("no such backend")

    for make, words in ((FullDisk, "No space left"), (Leaving, "SystemExit: 3"), (refuse, "no such backend")):
        thread = SinkThread("mine", make)
        thread.offer(1, {})
        thread.close()
        assert words in thread.problem
        assert seconds_of(thread, 1000) < 0.5

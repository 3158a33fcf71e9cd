"""Jobs on threads: how many are unfinished, their order, errors, and what error messages call an option."""

from __future__ import annotations

import threading
import time

import pytest

from raymine import workers
from raymine.errors import option, speaking_of_flags
from raymine.workers import Workers, ahead


@pytest.mark.parametrize(("threads", "room", "size", "most"), [(3, None, 1, 5), (3, 40, 20, 2), (1, 10, 99, 1)])
def test_unfinished_jobs_stay_within_threads_and_room(threads: int, room: int | None, size: int, most: int) -> None:
    """Three threads have two more jobs waiting; sizes add up to `room`; a job that is larger runs alone."""
    lock, unfinished, seen, done = threading.Lock(), [0], [0], []

    def job() -> None:
        time.sleep(0.002)
        with lock:
            done.append(1)
            unfinished[0] -= 1

    with Workers(threads, room=room) as pool:
        for _ in range(20):
            with lock:
                # The one that `submit` has not accepted yet is not counted.
                seen[0] = max(seen[0], unfinished[0])
                unfinished[0] += 1
            pool.submit(job, size)
        seen[0] = max(seen[0], unfinished[0])
    assert len(done) == 20
    assert 1 <= seen[0] <= most


def test_one_thread_keeps_the_order() -> None:
    order: list[int] = []
    with Workers(1) as pool:
        for i in range(30):
            pool.submit(lambda i=i: order.append(i))
        pool.finish()
        assert order == list(range(30))


def test_first_error_of_a_job_reaches_the_caller_and_ends_the_work() -> None:
    submitted: list[int] = []
    ran: list[int] = []

    def job(i: int) -> None:
        ran.append(i)
        if i >= 3:
            raise KeyError(i)

    with pytest.raises(KeyError, match="3"), Workers(1) as pool:  # noqa: PT012
        for i in range(1000):
            pool.submit(lambda i=i: job(i))
            submitted.append(i)
    assert len(submitted) < 10, "the caller goes on after a failure"
    assert ran == list(range(len(ran)))


def test_error_of_the_last_job_is_raised_at_the_end_of_the_block() -> None:
    with pytest.raises(KeyError, match="last"), Workers(2) as pool:
        pool.submit(lambda: {}["last"])  # type: ignore[var-annotated]


def test_error_in_the_block_drops_waiting_jobs_and_waits_for_running_ones() -> None:
    started, release, ran = threading.Event(), threading.Event(), []

    def slow() -> None:
        started.set()
        release.wait(10)
        ran.append("slow")

    with pytest.raises(ValueError, match="stop"), Workers(1) as pool:  # noqa: PT012
        pool.submit(slow)
        pool.submit(lambda: ran.append("dropped"))
        started.wait(10)
        threading.Timer(0.05, release.set).start()
        raise ValueError("stop")
    assert ran == ["slow"]


def test_default_is_a_thread_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 7)
    assert Workers().threads == 7


def test_jobs_name_options_as_the_caller_does() -> None:
    names: list[str] = []
    with speaking_of_flags(), Workers(1) as pool:
        pool.submit(lambda: names.append(option("out")))
    with Workers(1) as pool:
        pool.submit(lambda: names.append(option("out")))
    assert names == ["--out", "`out`"]


def test_results_made_ahead_come_in_order_and_few_at_a_time() -> None:
    made: list[int] = []

    def make(item: int) -> int:
        made.append(item)
        return 10 * item

    found = ahead(make, range(6), 2)
    assert next(found) == 0
    assert len(made) <= 3
    assert list(found) == [10, 20, 30, 40, 50]
    assert list(ahead(make, [], 2)) == []


def test_error_of_a_result_made_ahead_is_raised_in_its_place() -> None:
    found = ahead(lambda item: 1 // item, (2, 1, 0, 1), 2)
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(found)
    started = threading.Event()
    stopped = ahead(lambda _: started.set(), range(100), 2)
    next(stopped)
    stopped.close()
    assert started.is_set()

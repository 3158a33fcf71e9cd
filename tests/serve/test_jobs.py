"""The queue of requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from raymine.cameras import look_at
from raymine.contracts import Camera
from raymine.export import Abandoned
from raymine.serve.jobs import QueueFull, RenderQueue, TooSlow
from raymine.serve.request import ViewRequest

REQUEST = ViewRequest(Camera(4, 3, 4, 4, 2, 1.5), look_at((0.0, -3.0, 1.0), (0.0, 0.0, 0.0)), (0.0, 0.0, 0.0))
PICTURE = np.zeros((3, 4, 3), dtype=np.uint8)


def test_requests_are_rendered_one_at_a_time_and_errors_are_raised() -> None:
    together, most = [0], [0]

    def draw(request: ViewRequest, unwanted: Callable[[], bool]) -> np.ndarray:
        together[0] += 1
        most[0] = max(most[0], together[0])
        time.sleep(0.005)
        together[0] -= 1
        return PICTURE

    queue = RenderQueue(draw, 100, 10.0)
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda _: queue.render(REQUEST), range(20)))
    assert all(each.startswith(b"\x89PNG") for each in found)
    assert most == [1]
    queue.close(1.0)

    def fail(request: ViewRequest, unwanted: Callable[[], bool]) -> np.ndarray:
        raise ValueError("broken")

    queue = RenderQueue(fail, 100, 10.0)
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            queue.render(REQUEST)
    queue.close(1.0)


def test_full_queue_and_closed_queue_refuse() -> None:
    go = threading.Event()

    def draw(request: ViewRequest, unwanted: Callable[[], bool]) -> np.ndarray:
        go.wait(10)
        return PICTURE

    queue = RenderQueue(draw, 1, 10.0)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(queue.render, REQUEST)
        while not queue.busy:
            time.sleep(0.01)
        second = pool.submit(queue.render, REQUEST)
        while not queue.length:
            time.sleep(0.01)
        with pytest.raises(QueueFull) as full:
            queue.render(REQUEST)
        assert full.value.seconds >= 1
        go.set()
        assert first.result() == second.result()
    queue.close(1.0)
    with pytest.raises(QueueFull):
        queue.render(REQUEST)


def test_time_limit_ends_a_picture_and_a_wait() -> None:
    def draw(request: ViewRequest, unwanted: Callable[[], bool]) -> np.ndarray:
        while not unwanted():
            time.sleep(0.01)
        time.sleep(1.0)  # A piece that takes longer than the second request waits.
        raise Abandoned

    queue = RenderQueue(draw, 10, 0.2)
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(queue.render, REQUEST) for _ in range(2)]
        slow = [each.exception() for each in found]
    assert sorted(each.started for each in slow if isinstance(each, TooSlow)) == [False, True]
    queue.close(1.0)


def test_closing_answers_what_waits() -> None:
    def draw(request: ViewRequest, unwanted: Callable[[], bool]) -> np.ndarray:
        time.sleep(0.02)
        return PICTURE

    queue = RenderQueue(draw, 10, 10.0)
    with ThreadPoolExecutor(5) as pool:
        found = [pool.submit(queue.render, REQUEST) for _ in range(5)]
        while queue.length < 3:
            time.sleep(0.001)
        queue.close(5.0)
        assert all(each.exception() is None for each in found)

"""Wall-clock seconds by stage."""

from __future__ import annotations

import pytest

from raymine.experiment.stopwatch import Stopwatch


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_seconds_count_for_the_innermost_stage_and_sum_to_the_wall_clock() -> None:
    clock = Clock()
    watch = Stopwatch(clock, started=97.0)
    clock.now += 1
    with watch.stage("images"):
        clock.now += 2
        with watch.stage("kernels"):
            clock.now += 4
        clock.now += 8
    with watch.stage("images"):
        clock.now += 16
    assert watch.stages() == {"start": 3.0, "other": 1.0, "images": 26.0, "kernels": 4.0}
    assert sum(watch.stages().values()) == watch.wall == 34.0


def test_stage_that_raises_is_counted() -> None:
    clock = Clock()
    watch = Stopwatch(clock)

    def fail() -> None:
        with watch.stage("scene"):
            clock.now += 5
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    clock.now += 1
    assert {stage: n for stage, n in watch.stages().items() if n} == {"scene": 5.0, "other": 1.0}


def test_first_step_is_noted_once() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    assert watch.first_step is None
    for _ in range(2):
        clock.now += 3
        watch.note_step()
    assert watch.first_step == 3.0


def test_stopwatch_of_the_process_counts_what_came_before_it() -> None:
    watch = Stopwatch.of_process()
    assert 0 < watch.stages()["start"] <= watch.wall

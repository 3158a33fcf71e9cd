"""The driver: training clock, lengths of bursts, horizons, and counting of non-finite steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raymine.contracts import StepReport
from raymine.experiment.drive import Driver, DriveState, Limits
from raymine.experiment.horizon import Replay
from support.fake_training import FakeState, advance


class Clock:
    """A fake clock: every step takes a second, every wait for the device ten."""

    def __init__(self, state: FakeState, poison: Callable[[int], bool] = lambda _: False) -> None:
        self.state, self.poison = state, poison
        self.time = 0.0
        self.asked: list[int] = []

    def advance(self, most: int) -> list[StepReport]:
        self.asked.append(most)
        self.time += most
        return [advance(self.state, poison=self.poison) for _ in range(most)]

    def wait(self) -> None:
        self.time += 10.0

    def driver(self, limits: Limits, progress: DriveState | None = None) -> Driver:
        made = Driver(self.state, self.advance, limits, progress or DriveState(), self.wait, lambda: self.time)
        made.start()
        return made


def drive(driver: Driver, most: int) -> None:
    """Run bursts until the limit is reached."""
    while not driver.finished:
        driver.update_horizon(driver.burst(most).before)


def test_clock_counts_bursts_and_waits_only() -> None:
    clock = Clock(FakeState())
    driver = clock.driver(Limits(steps=100))
    driver.burst(3)
    clock.time += 1000.0
    driver.wait()
    clock.time += 1000.0
    assert driver.burst(2).before == 13.0
    assert driver.progress.elapsed == 15.0


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        (Limits(steps=10), [4, 4, 2]),
        # `max_useful_steps` does not shorten an explicit number of steps.
        (Limits(steps=10, max_useful_steps=6), [4, 4, 2]),
        (Limits(max_seconds=100.0, max_useful_steps=6), [4, 2]),
        (Limits(max_seconds=7.0), [4, 4]),
        (Limits(replay=Replay(10, ((0, 9), (3, 10)), ((7, 0),))), [3, 4, 3]),
    ],
)
def test_bursts_end_at_limits_and_replayed_events(limits: Limits, asked: list[int]) -> None:
    clock = Clock(FakeState())
    driver = clock.driver(limits)
    drive(driver, 4)
    assert clock.asked == asked
    assert driver.state.step == sum(asked)


def test_replay_reproduces_recorded_horizons() -> None:
    timed = Clock(FakeState(horizon=5))
    driver = timed.driver(Limits(max_seconds=50.0))
    drive(driver, 3)
    # The speed is constant, so the estimate does not change after the first one.
    assert driver.progress.horizons == [(3, 50)]
    again = Clock(FakeState(horizon=5))
    replay = Replay(driver.state.step, tuple(driver.progress.horizons))
    other = again.driver(Limits(replay=replay))
    drive(other, 64)
    assert other.progress.horizons == driver.progress.horizons
    assert (other.state.step, other.state.horizon) == (driver.state.step, driver.state.horizon)


def test_new_time_budget_sets_the_horizon_from_measured_speed() -> None:
    state = FakeState(step=40)
    told: list[int] = []
    progress = DriveState(elapsed=20.0, budget=20.0)
    driver = Driver(state, lambda _: [], Limits(max_seconds=30.0), progress, on_horizon=told.append)
    driver.start()
    assert told == [state.horizon] == [60]
    assert progress.budget == 30.0


def test_streak_of_non_finite_steps_is_counted_across_bursts() -> None:
    clock = Clock(FakeState(), poison=lambda step: step == 2 or 5 <= step <= 14)
    driver = clock.driver(Limits(steps=40))
    first = driver.burst(8)
    assert (first.first_bad, first.diverged, len(first.counted)) == ((2, 5), False, 8)
    assert driver.progress.streak == 4
    second = driver.burst(8)
    # The eighth non-finite step in a row is step 12; later steps of the burst are not counted.
    assert (second.first_bad, second.diverged, len(second.counted), len(second.reports)) == ((), True, 4, 8)

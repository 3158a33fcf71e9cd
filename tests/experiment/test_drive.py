"""The driver: training clock, lengths of bursts, horizons, and counting of non-finite steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from raymine.contracts import StepReport
from raymine.experiment.drive import Driver, DriveState, Limits
from raymine.experiment.horizon import Replay
from raymine.step.schedule import end_of
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


@dataclass
class RefiningState(FakeState):
    """A state that refines something up to the share `until` of its horizon, which it remembers as the step `ended`."""

    until: float = 0.6
    ended: int = 0


class TwoSpeeds:
    """A fake clock: a step takes a second while the state refines, and a twentieth afterwards."""

    def __init__(self, state: RefiningState) -> None:
        self.state, self.time = state, 0.0

    def advance(self, most: int) -> list[StepReport]:
        state, end = self.state, end_of(self.state.until, self.state.horizon)
        if not state.ended and state.step >= end:
            state.ended = state.step
        count = most if state.ended else 1
        self.time += count / 20 if state.ended else 1.0
        return [advance(state) for _ in range(count)]

    def driver(self, budget: float) -> Driver:
        limits, kind = Limits(max_seconds=budget), lambda: self.state.ended == 0
        made = Driver(self.state, self.advance, limits, now=lambda: self.time, kind=kind)
        made.start()
        return made


@pytest.mark.parametrize(("horizon", "budget"), [(20_000, 1000.0), (30, 1000.0), (20_000, 200.0)])
def test_time_is_shared_out_as_steps_are_before_the_speed_changes(horizon: int, budget: float) -> None:
    """The first part of a run gets its share of the time, and the schedule of the rest follows its own speed."""
    clock = TwoSpeeds(RefiningState(horizon=horizon))
    driver, shares = clock.driver(budget), list[float]()
    while not driver.finished:
        burst = driver.burst(64)
        driver.update_horizon(burst.before)
        if clock.state.ended:
            shares.append(clock.state.step / clock.state.horizon)
    assert clock.state.ended == pytest.approx(0.6 * budget, rel=0.05)
    steps = clock.state.ended + 20 * (budget - clock.state.ended)
    assert clock.state.step == pytest.approx(steps, rel=0.05)
    first = next(horizon for at, horizon in driver.progress.horizons if at > clock.state.ended)
    assert first == pytest.approx(steps, rel=0.1), "the speed of new steps is not mixed with that of earlier ones"
    assert max(shares[: len(shares) // 2]) < 0.7, "the rest has most of a schedule"
    replay = Replay(clock.state.step, tuple(driver.progress.horizons))
    again = TwoSpeeds(RefiningState(horizon=horizon))
    other = Driver(again.state, again.advance, Limits(replay=replay), now=lambda: again.time)
    other.start()
    drive(other, 7)
    assert (again.state.ended, again.state.horizon) == (clock.state.ended, clock.state.horizon)


def test_horizon_of_a_recipe_is_replaced_before_half_of_it_is_over() -> None:
    """A hundredth of a long budget may be more steps than the recipe plans for."""
    clock = TwoSpeeds(RefiningState(horizon=40))
    driver = clock.driver(10_000.0)
    drive(driver, 64)
    assert driver.progress.horizons[0] == (20, 10_000)
    assert clock.state.ended == pytest.approx(6000, rel=0.05)


def test_streak_of_non_finite_steps_is_counted_across_bursts() -> None:
    clock = Clock(FakeState(), poison=lambda step: step == 2 or 5 <= step <= 14)
    driver = clock.driver(Limits(steps=40))
    first = driver.burst(8)
    assert (first.first_bad, first.diverged, len(first.counted)) == ((2, 5), False, 8)
    assert driver.progress.streak == 4
    second = driver.burst(8)
    # The eighth non-finite step in a row is step 12; later steps of the burst are not counted.
    assert (second.first_bad, second.diverged, len(second.counted), len(second.reports)) == ((), True, 4, 8)

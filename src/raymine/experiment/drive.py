"""Advance a training state until its limit: bursts of steps, training clock, learning-rate horizon, non-finite steps.

There are no files and no observers here. `loop` adds them for a run; the benchmarks add a log of every step. Both train
alike, because both are driven by this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from raymine.contracts import StepReport

from .horizon import Replay, estimate, moment_passed, replayed

NON_FINITE_LIMIT = 8
"""Non-finite steps in a row after which skipping them no longer helps."""


class Steppable(Protocol):
    """What is driven: `step` counts the steps taken, `horizon` is the length of the learning-rate schedule in steps."""

    step: int
    horizon: int


@dataclass(frozen=True)
class Limits:
    """When training ends: after `steps` steps or `max_seconds` of training (exactly one), or where `replay` ended.

    max_useful_steps: with `max_seconds`, training also ends after this many steps; 0: no such number.
    """

    steps: int | None = None
    max_seconds: float | None = None
    replay: Replay | None = None
    max_useful_steps: int = 0


@dataclass
class DriveState:
    """What a driver carries from burst to burst, as plain data.

    elapsed: training seconds. horizons: (step, horizon) whenever the horizon changed. marks: (step, elapsed) at moments
    of the budget, to measure speed from. budget: the max_seconds that the horizon was laid out for. streak: non-finite
    steps in a row.
    """

    elapsed: float = 0.0
    horizons: list[tuple[int, int]] = field(default_factory=list)
    marks: list[tuple[int, float]] = field(default_factory=list)
    budget: float | None = None
    streak: int = 0


@dataclass(frozen=True)
class Burst:
    """The steps of one call of `advance`. before: training seconds when it began.

    counted: the reports up to the end of a streak of `NON_FINITE_LIMIT` non-finite steps, or all of them.
    first_bad: the steps, counted from 1, at which a non-finite streak began. diverged: a streak reached the limit.
    """

    before: float
    reports: Sequence[StepReport]
    counted: Sequence[StepReport]
    first_bad: tuple[int, ...]
    diverged: bool


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Driver:
    """Drives `state` by `advance`, which takes at least one and at most so many steps.

    synchronise: waits for the device. now: the clock, in seconds. on_horizon: told each new horizon.
    """

    state: Steppable
    advance: Callable[[int], Sequence[StepReport]]
    limits: Limits
    progress: DriveState = field(default_factory=DriveState)
    synchronise: Callable[[], None] = _nothing
    now: Callable[[], float] = time.perf_counter
    on_horizon: Callable[[int], None] = lambda _: None

    @property
    def finished(self) -> bool:
        """Whether a limit is reached."""
        limits, step = self.limits, self.state.step
        if limits.replay is not None:
            return step >= limits.replay.final_step
        if limits.steps is not None:
            return step >= limits.steps
        overfits = 0 < limits.max_useful_steps <= step
        return overfits or self.progress.elapsed >= (limits.max_seconds or 0.0)

    def start(self) -> None:
        """Lay out the learning-rate schedule before the first burst."""
        limits, progress = self.limits, self.progress
        if limits.replay is not None:
            self._follow(limits.replay)
        elif limits.steps is not None:
            self._set_horizon(limits.steps)
        elif limits.max_seconds is not None and progress.budget not in (None, limits.max_seconds) and progress.elapsed:
            # A budget changed on resume: the speed so far is the best guess for the new one.
            self._set_horizon(self._estimate(limits.max_seconds))
        progress.budget = limits.max_seconds

    def burst(self, most: int) -> Burst:
        """Advance by at most `most` steps, and not past a step at which a limit or a replay has something to do."""
        progress = self.progress
        before, started = progress.elapsed, self.now()
        reports = self.advance(max(1, min([most, *self._steps_left()])))
        progress.elapsed += self.now() - started
        first_bad = []
        for number, report in enumerate(reports, 1):
            progress.streak = 0 if report.finite else progress.streak + 1
            if progress.streak == 1:
                first_bad.append(report.step + 1)
            if progress.streak >= NON_FINITE_LIMIT:
                return Burst(before, reports, reports[:number], tuple(first_bad), True)
        return Burst(before, reports, reports, tuple(first_bad), False)

    def wait(self) -> None:
        """Wait for the device; the clock counts it, since it waits for training."""
        started = self.now()
        self.synchronise()
        self.progress.elapsed += self.now() - started

    def update_horizon(self, before: float) -> None:
        """Estimate the horizon again where that is due, after a burst that began at `before` training seconds."""
        limits, state, progress = self.limits, self.state, self.progress
        if limits.replay is not None:
            self._follow(limits.replay)
        elif limits.max_seconds is not None and not self.finished:
            moment = moment_passed(limits.max_seconds, before, progress.elapsed)
            if moment or state.step >= state.horizon:
                self._set_horizon(self._estimate(limits.max_seconds))
            if moment:
                progress.marks.append((state.step, progress.elapsed))

    def _steps_left(self) -> list[int]:
        """Steps until each limit that is known by its step, and until each step of a replay that changes something."""
        limits, step = self.limits, self.state.step
        ends = [end for end in (limits.steps or limits.max_useful_steps,) if end]
        if limits.replay is not None:
            record = limits.replay
            moments = (record.final_step, *(at for at, _ in (*record.horizons, *record.rollbacks)))
            ends += [at for at in moments if at > step]
        return [end - step for end in ends]

    def _estimate(self, budget: float) -> int:
        progress = self.progress
        return estimate(self.state.step, progress.elapsed, progress.marks, budget, self.limits.max_useful_steps)

    def _follow(self, replay: Replay) -> None:
        horizon = replayed(replay.horizons, self.state.step)
        if horizon is not None:
            self._set_horizon(horizon)

    def _set_horizon(self, horizon: int) -> None:
        state, progress = self.state, self.progress
        recorded = progress.horizons[-1][1] if progress.horizons else None
        if horizon != state.horizon or horizon != recorded:
            state.horizon = horizon
            progress.horizons.append((state.step, horizon))
            self.on_horizon(horizon)

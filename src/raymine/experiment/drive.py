"""Advance a training state until a limit: bursts of steps, training clock, learning-rate horizon, non-finite steps.

This module knows no files and no observers. `loop` adds them for a run, and the benchmarks add a log of every step, so
both train in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from raymine.contracts import StepReport

from .horizon import Replay, estimate, moment_passed, replayed

NON_FINITE_LIMIT = 8
"""After this many non-finite steps in a row, training has diverged."""


class Steppable(Protocol):
    """The state that is driven. step: steps taken. horizon: length of the learning-rate schedule in steps."""

    step: int
    horizon: int


@dataclass(frozen=True)
class Limits:
    """When training ends: after `steps` steps or `max_seconds` of training (exactly one), or where `replay` ended.

    max_useful_steps: with `max_seconds`, training also ends after this many steps; 0: no such limit.
    """

    steps: int | None = None
    max_seconds: float | None = None
    replay: Replay | None = None
    max_useful_steps: int = 0


@dataclass
class DriveState:
    """The state of a driver between bursts, as plain data.

    elapsed: training seconds. horizons: (step, horizon) at every change of the horizon. marks: (step, elapsed) at
    certain moments of the budget, to measure speed. pace: (step, elapsed) at which steps of the present kind began,
    whose speed is measured. budget: the `max_seconds` for which the horizon was estimated. streak: non-finite steps in
    a row.
    """

    elapsed: float = 0.0
    horizons: list[tuple[int, int]] = field(default_factory=list)
    marks: list[tuple[int, float]] = field(default_factory=list)
    pace: tuple[int, float] = (0, 0.0)
    budget: float | None = None
    streak: int = 0


@dataclass(frozen=True)
class Burst:
    """The steps of one call of `advance`. before: training seconds at its start.

    counted: the reports up to the step at which training diverged, or all reports.
    first_bad: the steps, counted from 1, at which a streak of non-finite steps began.
    diverged: whether a streak reached `NON_FINITE_LIMIT`.
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
    """Advances `state`. `advance(n)` must take at least 1 and at most n steps.

    synchronise: waits for the device. now: the clock in seconds. on_horizon: called with each new horizon. kind: the
    kind of the last step; where it changes, so does the speed, and the horizon is estimated from that of the new steps.
    """

    state: Steppable
    advance: Callable[[int], Sequence[StepReport]]
    limits: Limits
    progress: DriveState = field(default_factory=DriveState)
    synchronise: Callable[[], None] = _nothing
    now: Callable[[], float] = time.perf_counter
    on_horizon: Callable[[int], None] = lambda _: None
    kind: Callable[[], object] = _nothing

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
        """Set the horizon of the learning-rate schedule. Call it before the first burst."""
        limits, progress = self.limits, self.progress
        if limits.replay is not None:
            self._follow(limits.replay)
        elif limits.steps is not None:
            self._set_horizon(limits.steps)
        elif limits.max_seconds is not None and progress.budget not in (None, limits.max_seconds) and progress.elapsed:
            # The budget changed on resume: estimate the horizon from the speed so far.
            self._set_horizon(self._estimate(limits.max_seconds))
        progress.budget = limits.max_seconds

    def burst(self, most: int) -> Burst:
        """Advance by at most `most` steps, but not past a limit or a step at which a replay changes something."""
        progress = self.progress
        before, began, kind, started = progress.elapsed, self.state.step, self.kind(), self.now()
        reports = self.advance(max(1, min([most, *self._steps_left()])))
        if self.kind() != kind:
            progress.pace = (began, before)
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
        """Wait for the device. The training clock counts this time, since the device is training."""
        started = self.now()
        self.synchronise()
        self.progress.elapsed += self.now() - started

    def update_horizon(self, before: float) -> None:
        """After a burst that began at `before` training seconds, estimate the horizon again if it is due."""
        limits, state, progress = self.limits, self.state, self.progress
        if limits.replay is not None:
            self._follow(limits.replay)
        elif limits.max_seconds is not None and not self.finished:
            moment = moment_passed(limits.max_seconds, before, progress.elapsed, progress.pace[1])
            # Until something is measured, the horizon is that of the recipe, which may be far too short for the budget.
            unmeasured = not progress.marks and 2 * state.step >= state.horizon
            if moment or unmeasured or state.step >= state.horizon:
                self._set_horizon(self._estimate(limits.max_seconds))
            if moment:
                progress.marks.append((state.step, progress.elapsed))

    def _steps_left(self) -> list[int]:
        """Steps until each limit that is a step, and until each step at which a replay changes something."""
        limits, step = self.limits, self.state.step
        ends = [end for end in (limits.steps or limits.max_useful_steps,) if end]
        if limits.replay is not None:
            record = limits.replay
            moments = (record.final_step, *(at for at, _ in (*record.horizons, *record.rollbacks)))
            ends += [at for at in moments if at > step]
        return [end - step for end in ends]

    def _estimate(self, budget: float) -> int:
        progress = self.progress
        most = self.limits.max_useful_steps
        return estimate(self.state.step, progress.elapsed, progress.marks, budget, most, progress.pace)

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

"""The horizon, the length of the learning-rate schedule in steps, of a time-limited run.

The schedule needs a total number of steps, which a time-limited run does not know. So the loop estimates it from the
measured speed at a few moments of the budget, and sets `state.horizon`. Each change is recorded as (step, horizon).
With this record and the final step a run can be replayed: the replay gives the same parameters at any speed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

# Shares of the budget, or of what is left of it when the speed changes. The first is early because the recipe's own
# horizon may be far off; later ones correct drift.
MOMENTS = (0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Replay:
    """The record of a finished run, to replay it: final step, (step, horizon) pairs, rollbacks (at, back to step)."""

    final_step: int
    horizons: tuple[tuple[int, int], ...] = ()
    rollbacks: tuple[tuple[int, int], ...] = ()


def moment_passed(budget: float, before: float, after: float, start: float = 0.0) -> bool:
    """Whether one of `MOMENTS` lies in (before, after], in training seconds of a budget of `budget` seconds.

    start: the training seconds at which the present speed began; moments are shares of the budget from there on.
    """
    return any(before < start + share * (budget - start) <= after for share in MOMENTS)


def estimate(
    step: int,
    elapsed: float,
    marks: Sequence[tuple[int, float]],
    budget: float,
    max_useful_steps: int = 0,
    start: tuple[int, float] = (0, 0.0),
) -> int:
    """Total steps expected by `budget` seconds, at least `step` + 1 and at most `max_useful_steps` (0: no such limit).

    `marks` are earlier (step, seconds) pairs, ascending. start: the pair at which the present speed began.

    The speed is measured over the second half of the run since `start`, from the last mark in the first half. The cost
    of a step changes as the scene is learnt; a shorter interval would be disturbed by other load on the machine.
    """
    most = max_useful_steps or sys.maxsize
    middle = (start[1] + elapsed) / 2
    since_step, since_elapsed = max((mark for mark in marks if start[1] <= mark[1] <= middle), default=start)
    span = elapsed - since_elapsed
    if span <= 0 or step <= since_step:
        return min(most, step + 1)
    speed = (step - since_step) / span
    return min(most, step + max(1, round(speed * max(0.0, budget - elapsed))))


def replayed(horizons: Sequence[tuple[int, int]], step: int) -> int | None:
    """The horizon at `step` according to a record; None before its first entry."""
    current = [horizon for at, horizon in horizons if at <= step]
    return current[-1] if current else None

"""How long the learning-rate schedule is, when the run is limited by seconds and not by steps.

A schedule needs a total number of steps (the horizon). A time-limited run does not know it, so the loop estimates it
from measured speed at a few moments of the budget and sets `state.horizon`. Each change is recorded as (step, horizon).
The record, with the final step, makes the run a function again: replaying it gives the same parameters, whatever the
clock says.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

# Shares of the budget. The first is early because the recipe's own horizon may be far off; the later ones absorb drift.
MOMENTS = (0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Replay:
    """What a finished run recorded, to be repeated: its last step, its horizons and its rollbacks as (at, back to)."""

    final_step: int
    horizons: tuple[tuple[int, int], ...] = ()
    rollbacks: tuple[tuple[int, int], ...] = ()


def moment_passed(budget: float, before: float, after: float) -> bool:
    """Whether one of `MOMENTS` lies in (before, after], in training seconds of a budget of `budget` seconds."""
    return any(before < share * budget <= after for share in MOMENTS)


def estimate(
    step: int, elapsed: float, marks: Sequence[tuple[int, float]], budget: float, max_useful_steps: int = 0
) -> int:
    """Total steps expected by `budget` seconds, at least `step` + 1 and at most `max_useful_steps` (0: no such limit).

    `marks` are earlier (step, seconds), ascending.

    The speed is that of the later half of the run so far, from the last mark in the first half: steps change their
    cost as the scene is learnt, and a shorter stretch would follow every hiccup of a busy machine.
    """
    most = max_useful_steps or sys.maxsize
    since_step, since_elapsed = max((mark for mark in marks if mark[1] <= elapsed / 2), default=(0, 0.0))
    span = elapsed - since_elapsed
    if span <= 0 or step <= since_step:
        return min(most, step + 1)
    speed = (step - since_step) / span
    return min(most, step + max(1, round(speed * max(0.0, budget - elapsed))))


def replayed(horizons: Sequence[tuple[int, int]], step: int) -> int | None:
    """The horizon in force at `step` according to a record; None before its first entry."""
    current = [horizon for at, horizon in horizons if at <= step]
    return current[-1] if current else None

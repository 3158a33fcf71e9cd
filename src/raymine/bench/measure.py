"""Train a state for some seconds and log every step. The clock counts training steps only."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from raymine.contracts import StepReport
from raymine.errors import TrainingError
from raymine.experiment.drive import Burst, Driver, Limits
from raymine.step import TrainState

from .derive import SHARES
from .records import StepTime, Trace

BURST = 64
"""The most steps of one burst in the fused step; the plain step takes one at a time."""
POINTS = 300
"""The most blocks into which the steps of a run are averaged."""


def _nothing() -> None:
    return None


Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Hooks(Generic[Seen]):
    """The callbacks of a benchmark. The clock counts `advance` and `synchronise`, which waits for the device.

    advance: `advance(n)` takes at least 1 and at most n steps. look: evaluates (state, training seconds). tick: called
    with the training seconds after each burst. now: the clock in seconds.
    """

    advance: Callable[[int], Sequence[StepReport]]
    look: Callable[[TrainState, float], Seen]
    tick: Callable[[float], None] = lambda _: None
    synchronise: Callable[[], None] = _nothing
    now: Callable[[], float] = time.perf_counter


@dataclass
class Log(Generic[Seen]):
    """A log of every step: its report, and the training seconds after it. cpu_seconds: of all threads, during steps."""

    reports: list[StepReport] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    looks: list[Seen] = field(default_factory=list)
    horizons: list[tuple[int, int]] = field(default_factory=list)
    cpu_seconds: float = 0.0

    @property
    def elapsed(self) -> float:
        return self.seconds[-1] if self.seconds else 0.0

    def add(self, burst: Burst, elapsed: float) -> None:
        """Add the steps of a burst that ended at `elapsed` training seconds; each gets an equal share of its time."""
        self.reports += burst.reports
        share = (elapsed - burst.before) / len(burst.reports)
        self.seconds += [burst.before + share * (i + 1) for i in range(len(burst.reports))]


def train_for(state: TrainState, budget: float, hooks: Hooks[Seen], shares: Sequence[float] = SHARES) -> Log[Seen]:
    """Train for `budget` seconds, or until further steps would overfit (`max_useful_steps`).

    shares: ascending shares of the budget at which `look` is called; the last, 1, is the end of training. Clock,
    learning-rate horizon and the rule for non-finite steps are those of `raymine train --max-seconds`. Where a run
    would roll back to a checkpoint, a benchmark raises `TrainingError`.
    """
    limits = Limits(max_seconds=budget, max_useful_steps=state.config.max_useful_steps)
    driver = Driver(
        state, hooks.advance, limits, synchronise=hooks.synchronise, now=hooks.now, kind=lambda: state.refining
    )
    log: Log[Seen] = Log(horizons=driver.progress.horizons)
    moments = [share * budget for share in shares[:-1]]
    driver.start()
    while not driver.finished:
        worked = time.process_time()
        burst = driver.burst(BURST)
        due = driver.finished or any(burst.before < moment <= driver.progress.elapsed for moment in moments)
        if due:
            driver.wait()
        log.cpu_seconds += time.process_time() - worked
        elapsed = driver.progress.elapsed
        log.add(burst, elapsed)
        if burst.diverged:
            raise TrainingError(
                f"Training with the policy {state.config.mining.policy} stays non-finite at step {state.step}.",
                hint="Run `raymine check` on the scene. Results of earlier runs are kept.",
            )
        driver.update_horizon(burst.before)
        if due:
            log.looks.append(hooks.look(state, elapsed))
        hooks.tick(elapsed)
    return log


def step_time(log: Log[Any]) -> StepTime:
    """Milliseconds per step: median and quartiles over the whole run."""
    durations = 1e3 * np.diff(log.seconds, prepend=0.0)
    low, median, high = (float(value) for value in np.percentile(durations, (25, 50, 75)))
    return StepTime(median, low, high)


def final_share(log: Log[Any]) -> float:
    """Trained / marched samples over the last tenth of the steps."""
    last = log.reports[-max(1, len(log.reports) // 10) :]
    return sum(r.trained for r in last) / max(1, sum(r.marched for r in last))


def final_rays(log: Log[Any]) -> float:
    """Rays per step over the last tenth of the steps."""
    last = log.reports[-max(1, len(log.reports) // 10) :]
    return sum(r.rays for r in last) / len(last)


def trace_of(log: Log[Any]) -> Trace:
    """Means over the steps of a run in at most `POINTS` blocks; non-finite steps do not count."""
    edges = np.linspace(0, len(log.reports), min(POINTS, len(log.reports)) + 1).round().astype(int)
    blocks = [(int(end), log.reports[a:end]) for a, end in itertools.pairwise(edges)]
    blocks = [(end, [r for r in part if r.finite]) for end, part in blocks]
    blocks = [(end, part) for end, part in blocks if part]
    mined = all("tau" in r.extra for _, part in blocks for r in part)

    def mean(value: Callable[[StepReport], float]) -> tuple[float, ...]:
        return tuple(sum(value(r) for r in part) / len(part) for _, part in blocks)

    return Trace(
        step=tuple(end for end, _ in blocks),
        seconds=tuple(log.seconds[end - 1] for end, _ in blocks),
        count=tuple(len(part) for _, part in blocks),
        loss=mean(lambda r: r.loss),
        mse=mean(lambda r: r.mse),
        rays=mean(lambda r: r.rays),
        marched=mean(lambda r: r.marched),
        trained=mean(lambda r: r.trained),
        tau=mean(lambda r: r.extra["tau"]) if mined else (),
        budget=mean(lambda r: r.extra["budget"]) if mined else (),
    )

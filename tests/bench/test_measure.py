"""Measurements of the mining benchmark: training clock, evaluation times, traces, memory and the probe."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from raymine.bench.derive import SHARES
from raymine.bench.measure import Hooks, Log, final_share, step_time, trace_of, train_for
from raymine.bench.memory import peak_bytes, step_memory
from raymine.bench.probe import probe
from raymine.bench.records import Look
from raymine.config import replace_fields
from raymine.contracts import StepReport
from raymine.errors import TrainingError
from raymine.recipes.policies import POLICIES
from raymine.step import TrainState, create_state, train_step
from support.bench_records import diagnosis
from support.scenes import ball_scene
from support.step import CONFIG

CPU = torch.device("cpu")


def report(step: int, finite: bool = True, loss: float = 1.0, trained: int = 10) -> StepReport:
    extra = {"tau": 2.0, "budget": 5.0}
    return StepReport(step, loss if finite else math.nan, 0.1, 4, 20, trained, 0.01, finite, extra)


class Clock:
    """A fake clock: every training step takes 10 ms, every evaluation 5 s."""

    def __init__(self, burst: int = 1) -> None:
        self.burst = burst
        self.time = 100.0
        self.looks: list[float] = []

    def advance(self, state: TrainState, most: int) -> list[StepReport]:
        steps = min(most, self.burst)
        self.time += 0.01 * steps
        state.step += steps
        return [report(state.step - steps + i) for i in range(steps)]

    def look(self, state: TrainState, seconds: float) -> Look:
        self.time += 5.0
        self.looks.append(seconds)
        return Look(seconds, state.step, 20.0, diagnosis())


@pytest.mark.parametrize("burst", [1, 4])
def test_clock_counts_training_only_and_evaluations_run_on_schedule(burst: int) -> None:
    clock, data = Clock(burst), ball_scene()[1]
    state = create_state(CONFIG, data, seed=0, device=CPU)
    hooks = Hooks(lambda most: clock.advance(state, most), clock.look, now=lambda: clock.time)
    log = train_for(state, 4.0, hooks)
    assert 400 <= len(log.reports) <= 400 + burst
    assert len(clock.looks) == len(SHARES) == 12
    assert clock.looks == [pytest.approx(4.0 * share, abs=0.0101 * burst) for share in SHARES]
    # From the first hundredth of the budget on, the schedule's horizon is the number of steps that fit into it.
    assert log.horizons[0][0] <= 4 + burst
    assert all(horizon == pytest.approx(400, abs=2) for _, horizon in log.horizons)
    assert step_time(log).median == pytest.approx(10.0)


def test_evaluations_run_at_requested_shares_of_the_budget() -> None:
    clock, state = Clock(), create_state(CONFIG, ball_scene()[1], seed=0, device=CPU)
    hooks = Hooks(lambda most: clock.advance(state, most), clock.look, now=lambda: clock.time)
    train_for(state, 2.0, hooks, (0.3, 0.5, 1.0))
    assert clock.looks == [pytest.approx(2.0 * share, abs=0.011) for share in (0.3, 0.5, 1.0)]


def test_run_ends_with_an_evaluation_after_max_useful_steps() -> None:
    clock = Clock(burst=4)
    state = create_state(replace(CONFIG, max_useful_steps=150), ball_scene()[1], seed=0, device=CPU)
    hooks = Hooks(lambda most: clock.advance(state, most), clock.look, now=lambda: clock.time)
    log = train_for(state, 4.0, hooks, (0.3, 0.5, 1.0))
    assert (state.step, len(log.reports)) == (150, 150)
    assert clock.looks == [pytest.approx(1.2, abs=0.041), pytest.approx(1.5)]
    assert log.horizons[-1][1] == state.horizon == 150


def test_training_that_stays_non_finite_raises() -> None:
    data = ball_scene()[1]
    state = create_state(CONFIG, data, seed=0, device=CPU)
    broken = Hooks(lambda _: [report(state.step, finite=False)], Clock().look)
    with pytest.raises(TrainingError, match="stays non-finite"):
        train_for(state, 60.0, broken)


def test_trace_averages_blocks_and_skips_non_finite_steps() -> None:
    reports = [report(i, finite=i % 2 == 0, loss=float(i), trained=10 if i < 900 else 5) for i in range(1000)]
    log = Log(reports, [0.01 * (i + 1) for i in range(1000)])
    trace = trace_of(log)
    assert len(trace.step) <= 300
    assert trace.step[-1] == 1000
    assert sum(trace.count) == 500
    assert np.average(trace.loss, weights=trace.count) == pytest.approx(499)
    assert trace.seconds[-1] == pytest.approx(10.0)
    assert final_share(log) == pytest.approx(0.25)
    assert trace_of(Log([replace(r, extra={}) for r in reports], log.seconds)).tau == ()


def test_peak_bytes_is_largest_sum_of_torch_and_numpy_allocations() -> None:
    mebibyte = 1 << 20

    def work() -> int:
        for _ in range(3):
            tensor, array = torch.zeros(mebibyte), np.ones(2 * mebibyte)
            del tensor, array
        return 7

    used, result = peak_bytes(work, CPU)
    assert result == 7
    assert used == pytest.approx((4 + 16) * mebibyte, rel=0.02)


@pytest.fixture(scope="module")
def states() -> dict[str, TrainState]:
    """A state of every policy after 61 steps; the next step does not update the occupancy grid."""
    data, made = ball_scene()[1], {}
    for name in ("none", "prune", "hard"):
        state = create_state(replace_fields(CONFIG, POLICIES[name]), data, seed=0, device=CPU)
        for _ in range(61):
            train_step(state, data)
        made[name] = state
    return made


def test_step_memory_is_lower_with_mining_and_leaves_state_unchanged(states: dict[str, TrainState]) -> None:
    data, state = ball_scene()[1], states["hard"]
    before = {name: value.clone() for name, value in state.tensors().items()}
    found = step_memory(state, data)
    assert 0 < found.policy < found.none
    assert found.trained < found.marched
    assert all(torch.equal(value, before[name]) for name, value in state.tensors().items())
    plain = step_memory(states["none"], data)
    assert plain.policy == pytest.approx(plain.none, rel=0.02)


@pytest.mark.parametrize("policy", ["none", "prune", "hard"])
def test_probe_counts_equal_those_of_the_next_step(policy: str, states: dict[str, TrainState]) -> None:
    data, state = ball_scene()[1], states[policy]
    before = {name: value.clone() for name, value in state.tensors().items()}
    seen = probe(state, data)
    assert all(torch.equal(value, before[name]) for name, value in state.tensors().items())
    done = train_step(state, data)
    assert (seen.diagnosis.samples, seen.diagnosis.chosen) == (done.marched, done.trained)
    assert (
        seen.diagnosis.share_gradient == pytest.approx(1.0) if policy == "none" else seen.diagnosis.share_gradient > 0.3
    )
    assert seen.ray is not None
    assert list(seen.ray.t) == sorted(seen.ray.t)
    assert len(seen.ray.t) == len(seen.ray.weight) == len(seen.ray.gradient) == len(seen.ray.chosen) > 0

"""The mining benchmark: its arithmetic by hand, its clock, its records, and what it measures of a step."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from raymine.bench import parse_policies, read_document
from raymine.bench.derive import (
    SHARES,
    Curve,
    binned_loss,
    curve_of,
    loss_ratio,
    mean_curve,
    reached,
    speedup,
    summarise,
)
from raymine.bench.measure import Hooks, Log, final_share, step_time, trace_of, train_for
from raymine.bench.memory import peak_bytes, step_memory
from raymine.bench.probe import probe
from raymine.bench.records import (
    Document,
    Look,
    RayDetail,
    Run,
    Setting,
    Shapes,
    StepMemory,
    StepTime,
    Trace,
    write_document,
)
from raymine.config import from_json, replace_fields, to_json
from raymine.contracts import StepReport
from raymine.errors import ConfigError, RunError, TrainingError
from raymine.mining import PUBLISHED
from raymine.mining.diagnose import Diagnosis, Histogram, Picked
from raymine.recipes.policies import POLICIES
from raymine.rundir import describe_environment
from raymine.step import TrainState, create_state, train_step
from scenes_for_tests import ball_scene
from test_step import CONFIG

CPU = torch.device("cpu")


def curve(*points: tuple[float, float]) -> Curve:
    seconds, psnr = np.array(points, dtype=float).T
    return Curve(seconds, psnr)


def diagnosis() -> Diagnosis:
    bars = Histogram((1e-6, 1e-3, 1.0), (3, 4), 1, 0)
    return Diagnosis(100, 40, 0.4, 0.9, 2.0, 3.0, 25.0, 0.5, Picked(50, 1), Picked(40, 38), Picked(10, 1), bars, bars)


def made_up_run(policy: str, seed: int, psnr: list[float], budget: float = 8.0, loss: float = 1.0) -> Run:
    """A run whose evaluations came exactly when they were due."""
    looks = tuple(Look(s * budget, 10 * i, p, diagnosis()) for i, (s, p) in enumerate(zip(SHARES, psnr, strict=True)))
    steps = (10, 20, 30)
    trace = Trace(steps, (1.0, 4.0, budget), (10,) * 3, (loss,) * 3, (0.1,) * 3, (5.0,) * 3, (100.0,) * 3, (40.0,) * 3)
    memory = StepMemory(policy=250, none=1000, rays=5, marched=100, trained=40)
    ray = RayDetail((1.0, 2.0), (0.1, 0.5), (1e-3, 1e-2), (False, True))
    time = StepTime(2.0, 1.5, 2.5)
    return Run(policy, seed, budget, 30, 0, time, 5.0, 0.4, 0.9, psnr[-1], 0.9, memory, looks, trace, ray, ((3, 30),))


def made_up_document(runs: tuple[Run, ...], seeds: int = 1) -> Document:
    names = tuple(dict.fromkeys(run.policy for run in runs))
    setting = Setting("/data/thing", "abc", "ngp", 1, 8.0, names, 3)
    return Document(
        setting,
        seeds,
        Shapes(5, 3, 16, 16, 1000, 2048),
        describe_environment(CPU),
        ("raymine", "bench"),
        "2026-01-01T00:00:00+00:00",
        True,
        {name: to_json(CONFIG) for name in names},
        runs,
        summarise(runs, names, 8.0),
    )


def test_the_speed_up_is_budget_over_the_time_of_reaching_where_the_baseline_ends() -> None:
    baseline = [curve((1, 10), (2, 20), (4, 28)), curve((1, 10), (2, 20), (4, 32))]
    # The mean of the two passes 30 dB half way between its second and its third point.
    own = [curve((1, 20), (2, 24), (3, 34), (4, 35)), curve((1, 20), (2, 26), (3, 36), (4, 37))]
    found = speedup(own, baseline, 4.0, ("hard", "none"))
    assert found.target == pytest.approx(30)
    assert found.reached == pytest.approx(2.5)
    assert found.factor == pytest.approx(4 / 2.5)
    assert found.seeds == (pytest.approx(4 / 2.6), pytest.approx(4 / 2.4))
    assert found.note == "hard reaches the 30.00 dB that none has after 4 s in 2.5 s."


def test_a_policy_that_never_gets_there_has_no_speed_up_but_a_sentence() -> None:
    found = speedup([curve((1, 10), (4, 29))], [curve((1, 10), (4, 30))], 4.0, ("prune", "none"))
    assert (found.factor, found.reached, found.seeds) == (None, None, (None,))
    assert found.note == "prune never reaches the 30.00 dB that none has after 4 s; its best is 29.00 dB."


def test_reached_before_the_first_evaluation_is_a_lower_bound() -> None:
    found = speedup([curve((1, 40), (4, 50))], [curve((1, 10), (4, 30))], 4.0, ("hard", "none"))
    assert found.factor == pytest.approx(4.0)
    assert "lower bound" in found.note
    assert reached(curve((1, 3), (2, 3)), 3.0) == 1.0


def test_the_baseline_has_a_speed_up_of_one_even_if_it_peaked_early() -> None:
    peaked = [curve((1, 10), (2, 31), (4, 30))]
    assert speedup(peaked, peaked, 4.0, ("none", "none")).factor == 1.0


def test_curves_are_read_off_at_the_moments_and_not_before_the_first_evaluation() -> None:
    run = made_up_run("none", 0, [float(i) for i in range(12)])
    late = replace(run, looks=tuple(replace(look, seconds=look.seconds + 0.02) for look in run.looks))
    found = curve_of(late, 8.0)
    assert found.seconds.tolist() == [pytest.approx(8 * share) for share in SHARES]
    # 0.02 s late in a stretch of 1 s that gains 1 dB: 0.02 dB less at the moment itself.
    assert found.psnr[-1] == pytest.approx(11 - 0.02, abs=1e-6)
    first_missing = replace(run, looks=run.looks[3:])
    assert curve_of(first_missing, 8.0).seconds[0] == pytest.approx(8 * SHARES[3])
    both = mean_curve([curve_of(run, 8.0), curve_of(first_missing, 8.0)])
    assert both.seconds[0] == pytest.approx(8 * SHARES[3])


def test_losses_are_compared_at_equal_iteration_whatever_the_blocks() -> None:
    none = Trace(step=(10, 20, 40), loss=(4.0, 2.0, 1.0))
    assert binned_loss(none, np.array([0, 10, 30, 40])).tolist() == pytest.approx([4.0, 1.5, 1.0])
    base, own = (replace(made_up_run(name, 0, [1.0] * 12), trace=none) for name in ("none", "hard"))
    own = replace(own, trace=Trace(step=(5, 25, 30), loss=(2.0, 1.4, 0.5)))
    found = loss_ratio([own], [base])
    assert found is not None
    assert found.step[-1] == pytest.approx(29.5)
    assert found.ratio[[0, 7, -1]] == pytest.approx([0.5, 0.35, 0.5])


def test_a_summary_holds_means_and_ranges_over_seeds() -> None:
    ramp = [float(i) for i in range(12)]
    runs = [made_up_run("none", 0, ramp), made_up_run("none", 1, [p + 2 for p in ramp], loss=3.0)]
    hard = made_up_run("hard", 0, [p + 6 for p in ramp], loss=1.0)
    none, mined = summarise([*runs, hard], ("none", "prune", "hard"), 8.0)
    assert none.psnr_end is not None
    assert (none.psnr_end.mean, none.psnr_end.low, none.psnr_end.high) == (12.0, 11.0, 13.0)
    assert none.psnr_quarter is not None
    assert none.psnr_quarter.mean == 6.0
    assert mined.memory_saved.mean == pytest.approx(0.75)
    assert mined.loss_ratio_vs_none == pytest.approx(0.5)
    assert mined.speedup_vs_prune is None
    assert mined.speedup_vs_none is not None
    # 12 dB are 6 on the ramp: the seventh moment.
    assert mined.speedup_vs_none.factor == pytest.approx(1 / SHARES[6])


def test_policies_are_overrides_of_the_config() -> None:
    for policy in parse_policies(",".join(POLICIES)):
        config = replace_fields(CONFIG, policy.overrides)
        assert config.mining.policy == policy.name.partition(":")[0]
    made = {p.name: replace_fields(CONFIG, p.overrides).mining for p in parse_policies(",".join(POLICIES))}
    assert made["hard:published"].hard == PUBLISHED
    assert made["hard:published"].faint == 0
    assert made["hard:topk"].hard.draw == "topk"
    assert made["hard:biased"].hard.reweight == "none"
    assert made["hard"] == replace(CONFIG.mining, policy="hard")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("none,hrad", "no policy `hrad`. Did you mean `hard`?"),
        ("hard:best", "no policy `hard:best`"),
        (" , ", "names no policy"),
        ("none,none", "`none` twice"),
    ],
)
def test_an_unknown_policy_is_refused_with_the_known_ones(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_policies(text)
    assert words in error.value.message
    assert all(name in error.value.hint for name in POLICIES)


def test_results_read_back_equal(tmp_path: Path) -> None:
    document = made_up_document((made_up_run("none", 0, [1.5] * 12), made_up_run("hard", 0, [2.5] * 12)))
    write_document(tmp_path, document)
    assert read_document(tmp_path) == document
    assert from_json(Document, to_json(document)) == document
    data = json.loads((tmp_path / "mining.json").read_text())
    (tmp_path / "mining.json").write_text(json.dumps({**data, "version": 99}))
    with pytest.raises(RunError, match="of this version"):
        read_document(tmp_path)
    (tmp_path / "mining.json").write_text(json.dumps(data)[:-20])
    with pytest.raises(RunError, match="cannot be read"):
        read_document(tmp_path)


def report(step: int, finite: bool = True, loss: float = 1.0, trained: int = 10) -> StepReport:
    extra = {"tau": 2.0, "budget": 5.0}
    return StepReport(step, loss if finite else math.nan, 0.1, 4, 20, trained, 0.01, finite, extra)


class Clock:
    """Every training step takes 10 ms, every evaluation 5 s."""

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
def test_the_clock_sees_steps_only_and_looks_come_at_the_moments(burst: int) -> None:
    clock, data = Clock(burst), ball_scene()[1]
    state = create_state(CONFIG, data, seed=0, device=CPU)
    hooks = Hooks(lambda most: clock.advance(state, most), clock.look, now=lambda: clock.time)
    log = train_for(state, 4.0, hooks)
    assert 400 <= len(log.reports) <= 400 + burst
    assert len(clock.looks) == len(SHARES) == 12
    assert clock.looks == [pytest.approx(4.0 * share, abs=0.0101 * burst) for share in SHARES]
    # The schedule is laid out for what the time allows, from the first hundredth of it on.
    assert log.horizons[0][0] <= 4 + burst
    assert all(horizon == pytest.approx(400, abs=2) for _, horizon in log.horizons)
    assert step_time(log).median == pytest.approx(10.0)


def test_looks_come_at_the_shares_that_are_asked_for() -> None:
    clock, state = Clock(), create_state(CONFIG, ball_scene()[1], seed=0, device=CPU)
    hooks = Hooks(lambda most: clock.advance(state, most), clock.look, now=lambda: clock.time)
    train_for(state, 2.0, hooks, (0.3, 0.5, 1.0))
    assert clock.looks == [pytest.approx(2.0 * share, abs=0.011) for share in (0.3, 0.5, 1.0)]


def test_run_ends_with_a_look_after_max_useful_steps() -> None:
    clock = Clock(burst=4)
    state = create_state(replace(CONFIG, max_useful_steps=150), ball_scene()[1], seed=0, device=CPU)
    hooks = Hooks(lambda most: clock.advance(state, most), clock.look, now=lambda: clock.time)
    log = train_for(state, 4.0, hooks, (0.3, 0.5, 1.0))
    assert (state.step, len(log.reports)) == (150, 150)
    assert clock.looks == [pytest.approx(1.2, abs=0.041), pytest.approx(1.5)]
    assert log.horizons[-1][1] == state.horizon == 150


def test_training_that_stays_non_finite_ends_with_an_error() -> None:
    data = ball_scene()[1]
    state = create_state(CONFIG, data, seed=0, device=CPU)
    broken = Hooks(lambda _: [report(state.step, finite=False)], Clock().look)
    with pytest.raises(TrainingError, match="stays non-finite"):
        train_for(state, 60.0, broken)


def test_a_trace_averages_blocks_and_leaves_out_what_is_not_finite() -> None:
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


def test_peak_memory_counts_torch_and_numpy_at_their_largest() -> None:
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
    """A state of every policy after 61 steps, which is no step before an update of the occupancy grid."""
    data, made = ball_scene()[1], {}
    for name in ("none", "prune", "hard"):
        state = create_state(replace_fields(CONFIG, POLICIES[name]), data, seed=0, device=CPU)
        for _ in range(61):
            train_step(state, data)
        made[name] = state
    return made


def test_step_memory_compares_the_same_batch_and_leaves_the_state_alone(states: dict[str, TrainState]) -> None:
    data, state = ball_scene()[1], states["hard"]
    before = {name: value.clone() for name, value in state.tensors().items()}
    found = step_memory(state, data)
    assert 0 < found.policy < found.none
    assert found.trained < found.marched
    assert all(torch.equal(value, before[name]) for name, value in state.tensors().items())
    plain = step_memory(states["none"], data)
    assert plain.policy == pytest.approx(plain.none, rel=0.02)


@pytest.mark.parametrize("policy", ["none", "prune", "hard"])
def test_a_probe_sees_what_the_next_step_will_train_on(policy: str, states: dict[str, TrainState]) -> None:
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

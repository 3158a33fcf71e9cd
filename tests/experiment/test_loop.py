"""The training loop: exact resume, signals, rollbacks, horizons, the training clock, and evaluations."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from raymine import checkpoint
from raymine.config import Every, Schedule
from raymine.errors import TrainingError
from raymine.experiment.horizon import MOMENTS, Replay, estimate, moment_passed
from raymine.experiment.observers import EvalInfo, Event, SilentObserver, StepInfo
from raymine.metrics_log import read_rows
from support.fake_training import FakeState, Options, assert_same_state, deterministic, score, train


class SignalAt(SilentObserver):
    """Sends a signal to this process when the step is reported; remembers events."""

    def __init__(self, step: int | None, number: int = signal.SIGTERM) -> None:
        self.step, self.number = step, number
        self.events: list[Event] = []
        self.evals: list[EvalInfo] = []
        self.steps: list[StepInfo] = []

    def on_step(self, info: StepInfo) -> None:
        self.steps.append(info)
        if info.step == self.step:
            signal.raise_signal(self.number)

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def on_eval(self, info: EvalInfo) -> None:
        self.evals.append(info)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


class Ticker:
    """A clock that advances by `tick` whenever it is read."""

    def __init__(self, tick: float) -> None:
        self.time, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.time += self.tick
        return self.time


EVERY_STEP = Schedule(metrics=1, checkpoint=Every(steps=7), evaluate=Every(steps=10))


@pytest.mark.parametrize("metrics", [1, 20])
def test_stopped_and_resumed_run_equals_uninterrupted_run_bit_for_bit(tmp_path: Path, metrics: int) -> None:
    schedule = Schedule(metrics=metrics, checkpoint=Every(steps=7), evaluate=Every(steps=10))
    options = Options(schedule=schedule, evaluate=True, split="held-out")
    whole, state_a, _ = train(tmp_path / "a", options)
    first, _, _ = train(tmp_path / "b", options, SignalAt(20))
    assert (first.status, first.step, first.exit_code) == ("stopped", 20, 143)
    second, state_b, _ = train(tmp_path / "b", options)
    assert (whole.status, whole.step, whole.exit_code) == ("finished", 40, 0)
    assert (second.status, second.step, second.exit_code) == ("finished", 40, 0)
    assert_same_state(state_a, state_b)
    rows_a, rows_b = (read_rows(tmp_path / n / "metrics.jsonl") for n in "ab")
    assert deterministic(rows_a) == deterministic(rows_b)
    assert [r["step"] for r in rows_a if r["kind"] == "eval"] == [10, 20, 30, 40]
    saved_a, saved_b = (checkpoint.load_latest(tmp_path / n / "checkpoints") for n in "ab")
    assert saved_a is not None
    assert saved_b is not None
    assert saved_a.checkpoint.step == saved_b.checkpoint.step == 40
    assert saved_a.checkpoint.scalars == saved_b.checkpoint.scalars
    best = checkpoint.read_best(tmp_path / "a/checkpoints")
    assert best is not None
    assert best == checkpoint.read_best(tmp_path / "b/checkpoints")
    assert whole.best_step == second.best_step == best.step


@pytest.mark.parametrize("burst", [3, 64])
def test_burst_length_does_not_change_the_run(tmp_path: Path, burst: int) -> None:
    schedule = Schedule(metrics=16, checkpoint=Every(steps=7), evaluate=Every(steps=10))
    _, state_a, _ = train(tmp_path / "a", Options(schedule=schedule, evaluate=True))
    _, state_b, _ = train(tmp_path / "b", Options(schedule=schedule, evaluate=True, burst=burst))
    assert_same_state(state_a, state_b)
    rows_a, rows_b = (read_rows(tmp_path / n / "metrics.jsonl") for n in "ab")
    assert deterministic(rows_a) == deterministic(rows_b)
    assert checkpoint.list_steps(tmp_path / "a/checkpoints") == checkpoint.list_steps(tmp_path / "b/checkpoints")


class SignalOnEvent(SignalAt):
    """Sends the signal when the loop reports an event of one kind."""

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        if event.kind == "checkpoint" and event.step == self.step:
            signal.raise_signal(self.number)


def test_stop_within_a_metrics_window_does_not_change_its_row(tmp_path: Path) -> None:
    schedule = Schedule(metrics=16, checkpoint=Every(steps=7))
    train(tmp_path / "a", Options(schedule=schedule))
    # Step 21 lies between the rows of 16 and 32.
    first, _, _ = train(tmp_path / "b", Options(schedule=schedule), SignalOnEvent(21, signal.SIGINT))
    assert (first.step, first.exit_code) == (21, 130)
    assert [r["step"] for r in read_rows(tmp_path / "b/metrics.jsonl")] == [16]
    train(tmp_path / "b", Options(schedule=schedule))
    rows_a, rows_b = (read_rows(tmp_path / n / "metrics.jsonl") for n in "ab")
    assert [r["step"] for r in rows_a] == [16, 32, 40]
    assert deterministic(rows_a) == deterministic(rows_b)


def test_metrics_are_means_of_their_window(tmp_path: Path) -> None:
    train(tmp_path / "fine", Options(steps=4, schedule=Schedule(metrics=1)))
    train(tmp_path / "coarse", Options(steps=4, schedule=Schedule(metrics=4)))
    fine, coarse = (read_rows(tmp_path / n / "metrics.jsonl") for n in ("fine", "coarse"))
    assert len(fine) == 4
    assert len(coarse) == 1
    assert coarse[0]["loss"] == pytest.approx(sum(r["loss"] for r in fine) / 4, rel=1e-12)
    assert coarse[0]["lr"] == fine[-1]["lr"]
    # Rays are 128 + 1, 2, 3, 4 and ten times as many samples are marched.
    assert (coarse[0]["rays"], coarse[0]["marched"], coarse[0]["trained"]) == (130, 1305, 261)


def test_finished_run_trains_no_further_unless_extended(tmp_path: Path) -> None:
    train(tmp_path / "a", Options(steps=10))
    again, state, _ = train(tmp_path / "a", Options(steps=10))
    assert (again.status, again.step) == ("finished", 10)
    longer, state, loop = train(tmp_path / "a", Options(steps=15))
    assert (longer.step, state.horizon) == (15, 15)
    assert loop.horizons == [(0, 10), (10, 15)]


def test_isolated_non_finite_steps_are_skipped_and_recorded(tmp_path: Path) -> None:
    seen = SignalAt(None)
    _, state, loop = train(tmp_path / "a", Options(steps=8, poison=lambda s: s in (3, 6), schedule=EVERY_STEP), seen)
    assert int(state.count) == 6
    assert [e.step for e in seen.events if e.kind == "non-finite"] == [3, 6]
    assert loop.rollbacks == []
    rows = [r for r in read_rows(tmp_path / "a/metrics.jsonl") if r["kind"] == "train"]
    assert [(r["step"], r["loss"] is None, r["skipped"]) for r in rows][2] == (3, True, 1)


def test_lost_rays_are_reported_as_an_event(tmp_path: Path) -> None:
    seen = SignalAt(None)
    train(tmp_path / "a", Options(steps=8, lose=lambda s: {2: 5, 3: 1}.get(s, 0), burst=4), seen)
    events = [(e.step, e.level, e.message) for e in seen.events if e.kind == "lost-rays"]
    assert events == [
        (4, "warning", "6 rays were left out: their samples did not fit into the buffers, which are larger now")
    ]


def test_eight_non_finite_steps_roll_back_to_the_last_checkpoint(tmp_path: Path) -> None:
    seen = SignalAt(None)
    options = Options(steps=30, poison=lambda s: 12 <= s < 20, schedule=EVERY_STEP)
    result, state, loop = train(tmp_path / "a", options, seen)
    # Checkpoints fall on 7 and 14, but none is taken in the middle of a bad streak.
    assert loop.rollbacks == [(19, 7)]
    assert result.status == "finished"
    assert [e.message for e in seen.events if e.kind == "rollback"] == [
        "8 non-finite steps in a row at step 19; parameters set back to step 7"
    ]
    # 7 good steps are in the checkpoint and 11 more (20 to 30) follow; steps 8 to 11 are lost.
    assert int(state.count) == 18
    again = Replay(30, tuple(loop.horizons), tuple(loop.rollbacks))
    _, replayed, other = train(tmp_path / "b", Options(steps=None, replay=again, poison=options.poison))
    assert_same_state(state, replayed)
    assert other.rollbacks == loop.rollbacks


def test_without_a_checkpoint_the_rollback_goes_to_the_initial_state(tmp_path: Path) -> None:
    _, state, loop = train(tmp_path / "a", Options(steps=12, poison=lambda s: 3 <= s < 11, schedule=Schedule()))
    assert loop.rollbacks == [(10, 0)]
    assert int(state.count) == 2


def test_a_run_that_stays_non_finite_ends_after_three_rollbacks(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"8 non-finite steps in a row at step 42, after 3 rollbacks") as caught:
        train(tmp_path / "a", Options(steps=100, poison=lambda s: s > 10, schedule=EVERY_STEP))
    assert caught.value.exit_code == 6
    # The last good checkpoint is kept.
    latest = checkpoint.load_latest(tmp_path / "a/checkpoints")
    assert latest is not None
    assert latest.checkpoint.step == 7


def test_evaluation_and_checkpoints_do_not_count_as_training_time(tmp_path: Path) -> None:
    # The clock is read twice around a step, so each step lasts one tick; evaluations read it too.
    options = Options(steps=20, schedule=EVERY_STEP, evaluate=True, now=Ticker(0.5))
    result, _, _ = train(tmp_path / "a", options)
    # Each checkpoint, evaluation or end waits for the device, which counts as training time.
    waits = len({7, 10, 14, 20})
    assert result.elapsed == pytest.approx(0.5 * (20 + waits))


def test_run_ending_in_a_device_wait_still_writes_last_row_and_evaluation(tmp_path: Path) -> None:
    # A step and the wait before its checkpoint take a tick each: step 5 ends at 0.9 s, its wait at 1.0 s.
    schedule = Schedule(metrics=4, checkpoint=Every(steps=1))
    options = Options(steps=None, max_seconds=0.95, schedule=schedule, evaluate=True, now=Ticker(0.1))
    result, _, _ = train(tmp_path / "a", options)
    assert (result.status, result.step) == ("finished", 5)
    rows = read_rows(tmp_path / "a/metrics.jsonl")
    assert [(row["kind"], row["step"]) for row in rows] == [("train", 4), ("train", 5), ("eval", 5)]


def test_best_checkpoint_by_held_out_psnr_is_kept_and_reported(tmp_path: Path) -> None:
    seen = SignalAt(None)
    schedule = Schedule(metrics=1, checkpoint=Every(steps=1), evaluate=Every(steps=5))
    options = Options(steps=40, schedule=schedule, evaluate=True, split="held-out")
    result, state, _ = train(tmp_path / "a", options, seen)
    best = max(seen.evals, key=lambda e: e.psnr)
    found = checkpoint.read_best(tmp_path / "a/checkpoints")
    assert found == checkpoint.Best(best.step, "held_out_psnr", best.psnr)
    assert best.step < 40, "the best must not be the last, or the test shows nothing"
    assert checkpoint.list_steps(tmp_path / "a/checkpoints") == sorted({best.step, 39, 40})
    # The result reports both the last and the best model.
    assert (result.held_out_psnr, result.test_psnr) == (score(state), None)
    assert (result.best_step, result.best_held_out_psnr) == (best.step, best.psnr)


def test_test_views_never_select_a_checkpoint(tmp_path: Path) -> None:
    seen = SignalAt(None)
    schedule = Schedule(metrics=1, checkpoint=Every(steps=9), evaluate=Every(steps=5))
    result, state, loop = train(tmp_path / "a", Options(steps=40, schedule=schedule, evaluate=True), seen)
    assert max(seen.evals, key=lambda e: e.psnr).step < 40
    assert not any(e.best for e in seen.evals)
    assert not (tmp_path / "a/checkpoints/best.json").exists()
    # Every evaluated step is saved, whatever its score.
    saved = sorted({9, 18, 27, 36} | {e.step for e in seen.evals})
    assert [e.step for e in seen.events if e.kind == "checkpoint"] == saved
    # The result reports the PSNR of the last model, not of the best one.
    assert result.test_psnr == seen.evals[-1].psnr == score(state)
    assert (result.best_step, result.best_held_out_psnr, result.held_out_psnr) == (None, None, None)
    assert loop.best is None
    rows = [r for r in read_rows(tmp_path / "a/metrics.jsonl") if r["kind"] == "eval"]
    assert {r["split"] for r in rows} == {"test"}


def test_stopped_run_does_not_report_the_psnr_of_an_earlier_step(tmp_path: Path) -> None:
    result, _, loop = train(tmp_path / "a", Options(schedule=EVERY_STEP, evaluate=True), SignalAt(13))
    assert loop.test is not None
    assert (result.step, loop.test[0], result.test_psnr) == (13, 10, None)
    assert result.train_psnr == read_rows(tmp_path / "a/metrics.jsonl")[-1]["psnr"]


def test_postponed_evaluation_can_still_mark_the_best_checkpoint(tmp_path: Path) -> None:
    options = Options(steps=20, schedule=EVERY_STEP, evaluate=True, split="held-out")
    train(tmp_path / "a", options, SignalAt(10))
    assert checkpoint.read_best(tmp_path / "a/checkpoints") is None
    train(tmp_path / "a", options, SignalAt(11))
    best = checkpoint.read_best(tmp_path / "a/checkpoints")
    assert best is not None
    assert best.step == 10


def test_a_time_limited_run_sets_its_horizon_from_speed_and_can_be_replayed(tmp_path: Path) -> None:
    # 20 s at 0.1 s per step are 200 steps.
    options = Options(steps=None, max_seconds=20.0, now=Ticker(0.1), schedule=Schedule(checkpoint=Every()))
    result, state, loop = train(tmp_path / "a", options)
    assert result.status == "finished"
    assert result.step in (200, 201)
    assert all(horizon == pytest.approx(200, abs=2) for _, horizon in loop.horizons)
    # The fake starts with a horizon of 1000, so the first moment must have changed it.
    assert loop.horizons[0][0] == pytest.approx(MOMENTS[0] * 200, abs=1)
    replay = Replay(result.step, tuple(loop.horizons))
    other, replayed, _ = train(tmp_path / "b", Options(steps=None, replay=replay, now=Ticker(3.0)))
    assert other.step == result.step
    assert_same_state(state, replayed)


def test_a_resumed_time_limited_run_continues_its_budget(tmp_path: Path) -> None:
    options = Options(steps=None, max_seconds=20.0, now=Ticker(0.1), schedule=Schedule(metrics=1))
    first, _, _ = train(tmp_path / "a", options, SignalAt(50))
    assert first.elapsed == pytest.approx(5.0)
    second, _, loop = train(tmp_path / "a", options)
    assert second.step == pytest.approx(200, abs=2)
    assert second.elapsed == pytest.approx(20.0, abs=0.3)
    steps = [step for step, _ in loop.horizons]
    assert steps == sorted(steps)


def test_longer_budget_on_resume_extends_the_horizon_at_once(tmp_path: Path) -> None:
    schedule = Schedule(metrics=1, checkpoint=Every())
    train(tmp_path / "a", Options(steps=None, max_seconds=5.0, now=Ticker(0.1), schedule=schedule))
    _, state, loop = train(tmp_path / "a", Options(steps=None, max_seconds=10.0, now=Ticker(0.1), schedule=schedule))
    assert state.step == pytest.approx(100, abs=2)
    # On resume, at step 50, the horizon is already that of the whole budget.
    assert any(
        step == pytest.approx(50, abs=1) and horizon == pytest.approx(100, abs=2) for step, horizon in loop.horizons
    )


@pytest.mark.parametrize("burst", [1, 64])
def test_time_limited_run_ends_after_max_useful_steps(tmp_path: Path, burst: int) -> None:
    options = Options(
        steps=None,
        max_seconds=20.0,
        max_useful_steps=37,
        now=Ticker(0.1),
        evaluate=True,
        burst=burst,
        schedule=Schedule(metrics=4),
    )
    seen = SignalAt(None)
    result, state, loop = train(tmp_path / "a", options, seen)
    assert (result.status, result.exit_code, result.step) == ("finished", 0, 37)
    assert loop.horizons[-1][1] == state.horizon == 37
    assert max(horizon for _, horizon in loop.horizons) == 37
    # It ends like any run: with a row of metrics, an evaluation and a checkpoint.
    assert [e.step for e in seen.evals] == [37]
    assert read_rows(tmp_path / "a/metrics.jsonl")[-1]["step"] == 37
    assert checkpoint.list_steps(tmp_path / "a/checkpoints")[-1] == 37
    # More time does not extend the run, but an explicit number of steps does.
    again, _, _ = train(tmp_path / "a", replace(options, max_seconds=40.0))
    assert (again.status, again.step) == ("finished", 37)
    longer, _, _ = train(tmp_path / "a", replace(options, max_seconds=None, steps=45))
    assert (longer.status, longer.step) == ("finished", 45)


def test_max_useful_steps_does_not_change_a_shorter_run(tmp_path: Path) -> None:
    options = Options(steps=None, max_seconds=20.0, now=Ticker(0.1))
    _, state_a, loop_a = train(tmp_path / "a", options)
    _, state_b, loop_b = train(tmp_path / "b", replace(options, max_useful_steps=1000, now=Ticker(0.1)))
    assert loop_a.horizons == loop_b.horizons
    assert_same_state(state_a, state_b)


def test_horizon_estimate_uses_recent_speed_and_max_useful_steps() -> None:
    assert estimate(30, 3.0, [], 10.0) == 100
    # Only the speed since the last mark in the first half counts: 10 steps in 3 s, with 6 s left.
    assert estimate(30, 4.0, [(10, 0.5), (20, 1.0), (29, 3.9)], 10.0) == 50
    assert estimate(30, 11.0, [(20, 3.0)], 10.0) == 31
    assert estimate(1, 0.0, [], 10.0) == 2
    assert estimate(30, 3.0, [], 10.0, 90) == 90
    assert estimate(30, 3.0, [], 10.0, 110) == 100
    assert moment_passed(100.0, 2.9, 3.0)
    assert not moment_passed(100.0, 3.0, 3.1)


def test_signal_handlers_are_restored_after_training(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    train(tmp_path / "a", Options(steps=3, schedule=Schedule(metrics=1)), SignalAt(2))
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_signal_postpones_a_due_evaluation_to_the_resumed_run(tmp_path: Path) -> None:
    seen = SignalAt(20)
    train(tmp_path / "a", Options(schedule=EVERY_STEP, evaluate=True), seen)
    assert [e.step for e in seen.evals] == [10]
    later = SignalAt(None)
    train(tmp_path / "a", Options(schedule=EVERY_STEP, evaluate=True), later)
    assert [e.step for e in later.evals] == [20, 30, 40]


def test_fake_state_depends_on_step_and_horizon(tmp_path: Path) -> None:
    """Guards the tests above: with a state that ignores its step or horizon they would pass trivially."""
    _, a, _ = train(tmp_path / "a", Options(steps=40))
    _, b, _ = train(tmp_path / "b", Options(steps=None, replay=Replay(40, ((0, 50),))))
    assert not torch.equal(a.weights, b.weights)
    assert not torch.equal(a.weights, FakeState().weights)

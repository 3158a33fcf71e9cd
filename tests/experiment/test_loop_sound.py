"""No run ends or saves a checkpoint with values that are not finite, and none loses its folder unnoticed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raymine import checkpoint
from raymine.config import Every, Schedule
from raymine.errors import RunError, TrainingError
from raymine.experiment import loop as loop_module
from raymine.experiment.horizon import Replay
from raymine.experiment.observers import Event, SilentObserver, StepInfo
from raymine.experiment.saved.saver import Saver
from raymine.rundir import RunDir, summarise_run
from support.fake_training import FakeState, Options, assert_same_state, train

SCHEDULE = Schedule(metrics=1, checkpoint=Every(steps=5))


class RemoveAt(SilentObserver):
    """Removes (or moves) a path when a step is reported."""

    def __init__(self, step: int, path: Path, target: Path | None = None) -> None:
        self.step, self.path, self.target = step, path, target

    def on_step(self, info: StepInfo) -> None:
        if info.step != self.step:
            return
        if self.target is not None:
            self.path.rename(self.target)
        elif self.path.is_dir():
            shutil.rmtree(self.path)
        else:
            self.path.unlink()


class Events(SilentObserver):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_event(self, event: Event) -> None:
        if event.kind == "rollback":
            self.messages.append(event.message)


def test_infinite_parameter_rolls_back_before_the_next_checkpoint(tmp_path: Path) -> None:
    seen = Events()
    options = Options(steps=20, overflow=lambda s: s == 8, schedule=SCHEDULE)
    result, state, loop = train(tmp_path / "a", options, seen)
    assert (result.status, loop.rollbacks) == ("finished", [(10, 5)])
    assert seen.messages == ["non-finite values in weights, moment, half at step 10; parameters set back to step 5"]
    assert state.non_finite() == []
    for step in checkpoint.list_steps(tmp_path / "a/checkpoints"):
        saved = FakeState()
        found = checkpoint.load(checkpoint.path_of(tmp_path / "a/checkpoints", step))
        saved.restore(found.tensors, found.scalars)
        assert saved.non_finite() == []
    again = Replay(20, tuple(loop.horizons), tuple(loop.rollbacks))
    _, replayed, other = train(tmp_path / "b", Options(steps=None, replay=again, overflow=options.overflow))
    assert_same_state(state, replayed)
    assert other.rollbacks == loop.rollbacks


def test_run_whose_last_step_is_infinite_fails_and_keeps_earlier_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"non-finite values in weights, half at the last step, 12"):
        train(tmp_path / "a", Options(steps=12, overflow=lambda s: s == 12, schedule=SCHEDULE))
    assert checkpoint.list_steps(tmp_path / "a/checkpoints") == [5, 10]


def test_run_that_stays_infinite_ends_after_three_rollbacks(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"values in weights, moment, half at step 25, after 3 rollbacks"):
        train(tmp_path / "a", Options(steps=100, overflow=lambda s: s > 7, schedule=SCHEDULE))
    assert checkpoint.list_steps(tmp_path / "a/checkpoints") == [15, 20]


@pytest.mark.parametrize("part", ["", "config.json", "manifest.json"])
def test_removed_run_folder_ends_the_run_with_an_error_and_a_usable_folder(tmp_path: Path, part: str) -> None:
    run = tmp_path / "a"
    with pytest.raises(
        RunError, match=r"removed or moved while it trained\. The model of step 10 is saved there again"
    ):
        train(run, Options(steps=20, schedule=SCHEDULE), RemoveAt(7, run / part))
    assert RunDir.open(run).read_config_json() == {"recipe": "fake"}
    assert summarise_run(run).status in ("running", "crashed")
    result, state, _ = train(run, Options(steps=20, schedule=SCHEDULE))
    _, whole, _ = train(tmp_path / "whole", Options(steps=20, schedule=SCHEDULE))
    assert (result.status, result.step) == ("finished", 20)
    assert_same_state(state, whole)


def test_run_folder_moved_at_the_last_step_is_not_reported_as_finished(tmp_path: Path) -> None:
    run, moved = tmp_path / "a", tmp_path / "moved"
    with pytest.raises(RunError, match="The model of step 20 is saved there again"):
        train(run, Options(steps=20, schedule=SCHEDULE), RemoveAt(20, run, moved))
    assert checkpoint.list_steps(moved / "checkpoints") == [10, 15]
    assert checkpoint.list_steps(run / "checkpoints") == [20]


def test_lost_run_folder_does_not_overwrite_what_took_its_place(tmp_path: Path) -> None:
    run, moved = tmp_path / "a", tmp_path / "moved"

    class Replace(RemoveAt):
        def on_step(self, info: StepInfo) -> None:
            super().on_step(info)
            if info.step == self.step:
                run.mkdir()
                (run / "photo.png").write_bytes(b"mine")

    with pytest.raises(RunError, match="something else is there now"):
        train(run, Options(steps=20, schedule=SCHEDULE), Replace(7, run, moved))
    assert [path.name for path in run.iterdir()] == ["photo.png"]
    assert checkpoint.list_steps(moved / "checkpoints") == [5]


def test_removed_checkpoints_are_written_again_before_the_run_ends(tmp_path: Path) -> None:
    run = tmp_path / "a"
    result, _, _ = train(run, Options(steps=20, schedule=SCHEDULE), RemoveAt(17, run / "checkpoints"))
    assert result.status == "finished"
    assert checkpoint.list_steps(run / "checkpoints") == [20]


class Deferred(Saver):
    """Writes a checkpoint when it is waited for, as late as a save beside training may be written."""

    before: Callable[[int], None] = staticmethod(lambda step: None)
    waiting: Callable[[], None] | None = None

    def save(self, step: int, *rest: Any) -> None:
        self.settle()
        self.waiting = partial(self._write_late, step, *rest)

    def settle(self) -> None:
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting()

    def _write_late(self, step: int, *rest: Any) -> None:
        self.before(step)
        super().save(step, *rest)


@pytest.mark.parametrize(("lost_at", "kept"), [(5, 10), (20, 20)])
def test_folder_removed_while_a_checkpoint_is_written_beside_training(
    tmp_path: Path, lost_at: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "a"

    def remove(step: int) -> None:
        if step == lost_at and not removed:
            removed.append(step)
            shutil.rmtree(run)

    removed: list[int] = []
    monkeypatch.setattr(Deferred, "before", staticmethod(remove))
    monkeypatch.setattr(loop_module, "Saver", Deferred)
    with pytest.raises(RunError, match=f"The model of step {kept} is saved there again"):
        train(run, Options(steps=20, schedule=SCHEDULE))
    assert removed == [lost_at]
    assert checkpoint.list_steps(run / "checkpoints") == [kept]

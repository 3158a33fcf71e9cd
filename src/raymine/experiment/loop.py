"""The training loop of a run: it adds metrics, evaluations, checkpoints, rollbacks and signal handling to the driver.

After every burst of steps come, in this order: metrics row, evaluation, checkpoint. So all rows up to step s are
written before the checkpoint of step s, and a run that resumes from it writes the same rows as an uninterrupted run.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from raymine import checkpoint
from raymine.config import Schedule
from raymine.contracts import Renderer, StepReport
from raymine.errors import CheckpointError, ResourceError, RunError, TrainingError, option
from raymine.evaluate.quick import QuickScore
from raymine.files import JSON
from raymine.quantities import listing
from raymine.rundir import RunDir
from raymine.step.hardness import HardView

from .drive import NON_FINITE_LIMIT, Burst, Driver, Limits
from .observers import EvalInfo, Event, HardViews, LiveRun, Observer, Observers, StepInfo
from .request import RunResult
from .saved.loopstate import LoopState, Window
from .saved.restore import restore_loop
from .saved.saver import Saver
from .signals import StopSignals
from .stopwatch import Stopwatch
from .watchers.guard import ImageGuard
from .watchers.journal import Journal
from .watchers.pose_watch import PoseWatch

ROLLBACK_LIMIT = 3


class Trainable(Protocol):
    """What the loop needs of a training state; `raymine.step.TrainState` is one."""

    step: int
    horizon: int

    def tensors(self) -> dict[str, Tensor]: ...

    def scalars(self) -> dict[str, JSON]: ...

    def non_finite(self) -> list[str]: ...

    def restore(self, tensors: dict[str, Tensor], scalars: dict[str, JSON]) -> None: ...


def _no_op() -> None:
    return None


@dataclass(frozen=True)
class LoopSetup:
    """Everything that the loop needs.

    advance: `advance(n)` takes at least 1 and at most n training steps of `state`. renderer: makes a renderer of the
    current model. hard_view: where a training image is hard for it. fresh: makes a new state as at step 0, for a
    rollback without a checkpoint. meta: stored in every checkpoint (recipe, digests). evaluate: the quick evaluation;
    None for none. synchronise: waits for the device. now: the clock in seconds. on_checkpoint: called after each save
    with its step and the loop as it was at that step, to update the manifest. guard: looks at the training images
    whenever the model is evaluated. device: where the state is, which decides how checkpoints are saved. watch: counts
    the seconds of evaluations and checkpoints. poses: tells about refined poses; None if there are none.
    """

    run: RunDir
    state: Trainable
    advance: Callable[[int], Sequence[StepReport]]
    renderer: Callable[[], Renderer]
    hard_view: HardViews
    fresh: Callable[[], Trainable]
    schedule: Schedule
    limits: Limits
    meta: Mapping[str, JSON]
    journal: Journal
    observer: Observer
    evaluate: Callable[[], QuickScore] | None = None
    synchronise: Callable[[], None] = _no_op
    now: Callable[[], float] = time.perf_counter
    on_checkpoint: Callable[[int, LoopState], None] = lambda *_: None
    guard: ImageGuard | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    watch: Stopwatch = field(default_factory=Stopwatch)
    poses: PoseWatch | None = None


@dataclass
class Loop:
    """One run in progress. `run` trains until a limit or a signal, and saves a checkpoint at the end."""

    setup: LoopSetup
    loop: LoopState
    _saved_step: int | None = None
    _snapshots: dict[int, tuple[dict[str, Tensor], dict[str, JSON]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        setup = self.setup
        self._observers: Observer = Observers([setup.journal, setup.observer])
        self._driver = Driver(
            setup.state,
            setup.advance,
            setup.limits,
            self.loop,
            setup.synchronise,
            setup.now,
            self._announce_horizon,
            kind=lambda: setup.poses is not None and setup.poses.refining,
        )
        self._saver = Saver(setup.run.checkpoints, setup.schedule.keep, setup.device)

    def run(self) -> RunResult:
        """Train. `TrainingError` if training stays non-finite after rollbacks, `ResourceError` if the disk is full."""
        steps = checkpoint.list_steps(self.setup.run.checkpoints)
        # If the step that we start from has a checkpoint, it needs no second one.
        self._saved_step = self.setup.state.step if self.setup.state.step in steps else None
        with StopSignals() as signals, contextlib.closing(self._saver):
            self._driver.start()
            if self.loop.evaluation_pending:
                # The checkpoint of this step exists already; it may only need to be marked as the best.
                self._evaluate()
                self._mark_best(self.setup.state.step, self.loop)
            while not self._driver.finished and signals.received is None:
                self._one_burst(signals)
            if signals.received is not None:
                self._event("signal", f"{signals.name} received; stopping after step {self.setup.state.step}")
                self._require_sound()
            self._save()
            with self.setup.watch.stage("checkpoints"):
                self._settle(self._saver.settle)
            # The folder was lost while the last checkpoint was written.
            if self._saved_step is None:
                self._save()
        status = "finished" if self._driver.finished else "stopped"
        exit_code = 0 if status == "finished" else 128 + (signals.received or 0)
        result = self._result(status == "finished", exit_code)
        self._warn_of(result.hard_images)
        self._observers.on_end(result)
        return result

    def _one_burst(self, signals: StopSignals) -> None:
        state, loop, schedule, driver = self.setup.state, self.loop, self.setup.schedule, self._driver
        self._keep_snapshot()
        with self.setup.watch.stage("training"):
            burst = driver.burst(self._steps_to_next_period())
        self.setup.watch.note_step()
        with self.setup.watch.stage("checkpoints"):
            self._settle(self._saver.poll)
        self._count(burst)
        ended = self.setup.poses.ending() if self.setup.poses is not None else ""
        if ended:
            self._event("poses-refined", ended)
        self._show()
        driver.update_horizon(burst.before)
        finished = driver.finished
        if state.step % schedule.metrics == 0 or finished:
            self._write_row()
        evaluate = self.setup.evaluate is not None and (
            finished or schedule.evaluate.due(state.step, burst.before, loop.elapsed)
        )
        checkpoint_due = schedule.checkpoint.due(state.step, burst.before, loop.elapsed) and loop.streak == 0
        if evaluate or checkpoint_due or finished:
            with self.setup.watch.stage("training"):
                driver.wait()
            if driver.finished and not finished:
                # The wait took the clock past the limit.
                finished = evaluate = True
                self._write_row()
            self._require_sound()
        if evaluate and signals.received is not None and not finished:
            # After a signal, stop soon: the resumed run does the evaluation and writes the same row.
            loop.evaluation_pending, evaluate = True, False
        if evaluate:
            self._evaluate()
        # Save whatever was evaluated, so that every score of a run belongs to a checkpoint.
        if checkpoint_due or evaluate:
            self._save()

    def _steps_to_next_period(self) -> int:
        """Steps until the next metrics row, evaluation or checkpoint that is due by step."""
        step, schedule = self.setup.state.step, self.setup.schedule
        periods = (schedule.metrics, schedule.evaluate.steps, schedule.checkpoint.steps)
        return min(period - step % period for period in periods if period)

    def _count(self, burst: Burst) -> None:
        """Add the reports of a burst to the metrics, and roll back if training diverged."""
        for report in burst.counted:
            self.loop.window.add(report)
        for step in burst.first_bad:
            self._event(
                "non-finite",
                f"the loss or a gradient of step {step} was not finite; the parameters did not change",
                level="warning",
            )
        replay = self.setup.limits.replay
        if burst.diverged:
            self._roll_back(f"{NON_FINITE_LIMIT} non-finite steps in a row")
        elif replay is not None and self.setup.state.step in dict(replay.rollbacks):
            self._roll_back("non-finite values in the recorded run")
        lost = sum(report.lost for report in burst.reports)
        if lost:
            message = f"{lost} rays were left out: their samples did not fit into the buffers, which are larger now"
            self._event("lost-rays", message, level="warning")

    def _show(self) -> None:
        """Call `on_burst` of the observers, outside the training clock."""
        used = False

        def wait() -> None:
            nonlocal used
            if not used:
                # The device may still be training. That time belongs to training, not to the observer.
                self._driver.wait()
            used = True

        def renderer() -> Renderer:
            wait()
            return self.setup.renderer()

        def hard_view(index: int, longest: int, *, unwanted: Callable[[], bool]) -> HardView | None:
            wait()
            return self.setup.hard_view(index, longest, unwanted=unwanted)

        self._observers.on_burst(LiveRun(self.setup.state.step, self.loop.elapsed, renderer, hard_view))
        if used:
            # Let the observer's work on the device end before the training clock continues.
            self.setup.synchronise()

    def _require_sound(self) -> None:
        """Roll back if parameters or other saved values are not finite, so that no checkpoint ever holds such values.

        The finite gate looks at losses and gradients. A finite gradient can still make a parameter infinite. At the end
        of a run no steps are left to recover in: `TrainingError`.
        """
        broken, step = self.setup.state.non_finite(), self.setup.state.step
        if not broken:
            return
        if self._driver.finished:
            raise TrainingError(
                f"Training diverged: non-finite values in {listing(broken)} at the last step, {step}.",
                hint="Lower the learning rate, and run `raymine check` on the scene; earlier checkpoints are kept.",
            )
        self._roll_back(f"non-finite values in {listing(broken)}")

    def _roll_back(self, reason: str) -> None:
        """Restore the parameters of the last finite checkpoint and continue from the current step.

        The step counter is not set back: random draws are a function of the step, so the same draws would come again.
        """
        state, loop = self.setup.state, self.loop
        if len(loop.rollbacks) >= ROLLBACK_LIMIT:
            raise TrainingError(
                f"Training stays non-finite: {reason} at step {state.step}, after {ROLLBACK_LIMIT} rollbacks.",
                hint="Lower the learning rate, and run `raymine check` on the scene; earlier checkpoints are kept.",
            )
        at, horizon = state.step, state.horizon
        back_to, tensors, scalars = self._sound_state()
        if self.setup.poses is not None:
            # Poses that are no longer refined cannot be what diverged, and refinement does not begin again.
            tensors, scalars = self.setup.poses.kept_in(tensors, scalars)
        state.restore(tensors, scalars)
        state.step, state.horizon = at, horizon
        loop.rollbacks.append((at, back_to))
        loop.streak = 0
        self._event(
            "rollback",
            f"{reason} at step {at}; parameters set back to step {back_to}",
            level="warning",
            data={"at": at, "back_to": back_to},
        )

    def _sound_state(self) -> tuple[int, dict[str, Tensor], dict[str, JSON]]:
        """The state to roll back to: that of the replay, else the latest intact checkpoint, else the initial state."""
        replay = self.setup.limits.replay
        if replay is not None:
            prescribed = dict(replay.rollbacks).get(self.setup.state.step)
            if prescribed in self._snapshots:
                return prescribed, *self._snapshots[prescribed]
        else:
            self._settle(self._saver.settle)
            for step in reversed(checkpoint.list_steps(self.setup.run.checkpoints)):
                found = self._load_sound(step)
                if found is not None:
                    return step, found.tensors, found.scalars
        fresh = self.setup.fresh()
        return 0, fresh.tensors(), fresh.scalars()

    def _load_sound(self, step: int) -> checkpoint.Checkpoint | None:
        try:
            found = checkpoint.load(checkpoint.path_of(self.setup.run.checkpoints, step))
            streak = restore_loop(found).streak
        except CheckpointError as error:
            self._event("damaged-checkpoint", error.message, level="warning")
            return None
        # One saved in the middle of a bad streak, by a signal or an evaluation, holds the parameters that fail now.
        return found if streak == 0 else None

    def _keep_snapshot(self) -> None:
        replay, state = self.setup.limits.replay, self.setup.state
        if replay is not None and any(state.step == back_to for _, back_to in replay.rollbacks):
            tensors = {name: value.detach().clone() for name, value in state.tensors().items()}
            self._snapshots[state.step] = (tensors, dict(state.scalars()))

    def _announce_horizon(self, horizon: int) -> None:
        self._event("horizon", f"learning-rate schedule set to {horizon} steps", data={"horizon": horizon})

    def _write_row(self) -> None:
        loop, window, state = self.loop, self.loop.window, self.setup.state
        if window.empty:
            return
        loop.last_loss, loop.last_psnr = window.mean_loss, window.psnr
        seconds = loop.elapsed - loop.window_from
        info = StepInfo(
            step=state.step,
            loss=window.mean_loss,
            psnr=window.psnr,
            rays=window.per_step(window.rays),
            marched=window.per_step(window.marched),
            trained=window.per_step(window.trained),
            learning_rate=window.learning_rate,
            elapsed=loop.elapsed,
            horizon=state.horizon,
            samples_per_second=window.marched / seconds if seconds > 0 else 0.0,
            skipped=window.skipped,
            extra=window.extra,
        )
        loop.window = Window()
        loop.window_from = loop.elapsed
        self._observers.on_step(info)
        news = self.setup.poses.news() if self.setup.poses is not None else ""
        if news:
            self._event("pose-limit", news, level="warning")

    def _evaluate(self) -> None:
        """Run the quick evaluation, outside the training clock. Held-out views may select this step as the best."""
        setup, loop, step = self.setup, self.loop, self.setup.state.step
        loop.evaluation_pending = False
        if setup.evaluate is None:
            return
        started = setup.now()
        with setup.watch.stage("evaluation"):
            found = setup.evaluate()
            if setup.guard is not None:
                loop.looks = setup.guard.look(loop.looks)
        # NaN (every pixel is masked) is not a score: as the first best score, no other could exceed it.
        look = None if math.isnan(found.psnr) else (step, found.psnr)
        loop.measured = found.protocol
        best = False
        if found.split == "test":
            loop.test = look
        else:
            loop.held_out = look
            best = look is not None and (loop.best is None or look[1] > loop.best[1])
            loop.best = look if best else loop.best
        seconds = setup.now() - started
        self._observers.on_eval(EvalInfo(step, found.psnr, found.views, seconds, found.split, best))

    def _save(self) -> None:
        """Save a checkpoint of the current step, if there is none yet.

        On CUDA it may still be on its way to the disk when this returns (see `saver`). If the run folder was removed or
        moved, the model is saved in a new one, and the run ends with a `RunError`.
        """
        with self.setup.watch.stage("checkpoints"):
            self._save_now()

    def _save_now(self) -> None:
        state, run, folder, step = self.setup.state, self.setup.run, self.setup.run.checkpoints, self.setup.state.step
        self._settle(self._saver.settle)
        lost = run.is_lost()
        if self._saved_step == step and checkpoint.path_of(folder, step).exists() and not lost:
            return
        if lost:
            run.recreate()
        self.setup.journal.sync()
        stored = self.loop.to_json()
        meta = {**self.setup.meta, "loop": stored}
        then = partial(self._saved, step, LoopState.from_json(stored))
        self._saved_step = step
        self._saver.save(step, state.tensors(), state.scalars(), meta, then)
        if lost:
            self._saver.settle()
            raise RunError(
                f"The run folder {run.path}, or a part of it, was removed or moved while it trained. The model of step "
                f"{step} is saved there again; earlier checkpoints and logs are gone.",
                hint=f"Continue with {option('resume', True)}, or evaluate it as it is.",
            )

    def _settle(self, settle: Callable[[], None]) -> None:
        """Conclude a save that ran beside training. If it failed because the folder was lost, `_save` makes it anew."""
        try:
            settle()
        except ResourceError:
            if not self.setup.run.is_lost():
                raise
            self._saved_step = None

    def _saved(self, step: int, loop: LoopState) -> None:
        """What follows a save. loop: its state at `step`, since training may have gone on."""
        self._mark_best(step, loop)
        self.setup.on_checkpoint(step, loop)
        self._observers.on_event(Event("checkpoint", f"step {step} saved", step))

    def _mark_best(self, step: int, loop: LoopState) -> None:
        """Mark the checkpoint of `step` as the best, if it is."""
        best = loop.best_marker()
        if best is not None and best.step == step:
            checkpoint.mark_best(self.setup.run.checkpoints, best)

    def _warn_of(self, hard: tuple[str, ...]) -> None:
        """Name the images that stay hard, once, at the end of a run."""
        if hard and self.setup.guard is not None:
            message = self.setup.guard.warning(hard, self.setup.run.path)
            self._event("hard-images", message, level="warning", data={"images": list(hard)})

    def _event(self, kind: str, message: str, *, level: str = "info", data: dict[str, JSON] | None = None) -> None:
        self._observers.on_event(Event(kind, message, self.setup.state.step, level, data or {}))

    def _result(self, finished: bool, exit_code: int) -> RunResult:
        step, loop = self.setup.state.step, self.loop
        scores = loop.scores(step)
        moved = self.setup.poses.mean_sizes() if self.setup.poses is not None else None
        guard = self.setup.guard if finished else None
        return RunResult(
            run=self.setup.run.path,
            status="finished" if finished else "stopped",
            exit_code=exit_code,
            step=step,
            elapsed=loop.elapsed,
            wall=self.setup.watch.wall,
            loss=loop.last_loss,
            train_psnr=scores.train_psnr,
            test_psnr=scores.test_psnr,
            held_out_psnr=scores.held_out_psnr,
            best_step=scores.best_step,
            best_held_out_psnr=scores.best_held_out_psnr,
            pose_degrees=None if moved is None else moved[0],
            pose_distance=None if moved is None else moved[1],
            hard_images=() if guard is None else guard.hard_images(loop.looks),
        )

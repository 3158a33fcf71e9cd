"""The training loop: steps, clock, metrics, checkpoints, recovery, and stopping in good order.

After every step, in this order: metrics row, evaluation, checkpoint. A checkpoint of step s therefore always comes
after every row up to s, and a run resumed from it writes what the unbroken run would have written.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from raymine import checkpoint
from raymine.config import Schedule
from raymine.contracts import StepReport
from raymine.errors import CheckpointError, TrainingError
from raymine.files import JSON
from raymine.rundir import RunDir

from .horizon import Replay, estimate, moment_passed, replayed
from .journal import Journal
from .loopstate import LoopState, Window
from .observers import EvalInfo, Event, Observer, Observers, StepInfo
from .request import RunResult
from .signals import StopSignals

NON_FINITE_LIMIT = 8
ROLLBACK_LIMIT = 3


class Trainable(Protocol):
    """What the loop needs of a training state; `raymine.step.TrainState` is one."""

    step: int
    horizon: int

    def tensors(self) -> dict[str, Tensor]: ...

    def scalars(self) -> dict[str, JSON]: ...

    def restore(self, tensors: dict[str, Tensor], scalars: dict[str, JSON]) -> None: ...


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation callback answers: mean PSNR (dB) over `views` held-out views."""

    psnr: float
    views: int


@dataclass(frozen=True)
class Limits:
    """When a run ends: after `steps` steps or `max_seconds` of training (exactly one); `replay` fixes the horizons.
    max_useful_steps: with `max_seconds`, the run also ends after this many steps; 0: no such number."""

    steps: int | None = None
    max_seconds: float | None = None
    replay: Replay | None = None
    max_useful_steps: int = 0


def _no_op() -> None:
    return None


@dataclass(frozen=True)
class Job:
    """Everything the loop works with.

    advance: at least one and at most so many training steps of `state`. fresh: a new state as it was at step 0 (for a
    rollback with no checkpoint).
    meta: what every checkpoint carries (recipe, digests). synchronise: waits for the device before the clock stops.
    now: the clock, in seconds. on_checkpoint: called after each save, to refresh the manifest.
    """

    run: RunDir
    state: Trainable
    advance: Callable[[int], Sequence[StepReport]]
    fresh: Callable[[], Trainable]
    schedule: Schedule
    limits: Limits
    meta: Mapping[str, JSON]
    journal: Journal
    observer: Observer
    evaluate: Callable[[], Evaluation] | None = None
    synchronise: Callable[[], None] = _no_op
    now: Callable[[], float] = time.perf_counter
    on_checkpoint: Callable[[LoopState], None] = lambda _: None


@dataclass
class Loop:
    """One run in progress. `run` trains until the limit or a signal and leaves a checkpoint behind."""

    job: Job
    loop: LoopState
    _saved_step: int | None = None
    _snapshots: dict[int, tuple[dict[str, Tensor], dict[str, JSON]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._watchers: Observer = Observers([self.job.journal, self.job.observer])

    def run(self) -> RunResult:
        """Train. `TrainingError` when it stays non-finite, `ResourceError` when the disk is full."""
        steps = checkpoint.list_steps(self.job.run.checkpoints)
        # The step we start from needs no second checkpoint, unless it was never saved.
        self._saved_step = self.job.state.step if self.job.state.step in steps else None
        with StopSignals() as signals:
            self._set_first_horizon()
            if self.loop.evaluation_pending:
                self._evaluate()
            while not self._finished() and signals.received is None:
                self._one_step(signals)
            if signals.received is not None:
                self._event("signal", f"{signals.name} received; stopping after step {self.job.state.step}")
            self._save()
        status = "finished" if self._finished() else "stopped"
        exit_code = 0 if status == "finished" else 128 + (signals.received or 0)
        result = self._result(status == "finished", exit_code)
        self._watchers.on_end(result)
        return result

    def _one_step(self, signals: StopSignals) -> None:
        state, loop, schedule = self.job.state, self.loop, self.job.schedule
        self._keep_snapshot()
        started = self.job.now()
        reports = self.job.advance(self._most_steps())
        before, loop.elapsed = loop.elapsed, loop.elapsed + (self.job.now() - started)
        for report in reports:
            if self._count(report):
                break
        lost = sum(report.lost for report in reports)
        if lost:
            message = f"{lost} rays found no room for their samples and were left out; there is more room now"
            self._event("lost-rays", message, level="warning")
        self._update_horizon(before)
        finished = self._finished()
        if state.step % schedule.metrics == 0 or finished:
            self._write_row()
        evaluate = self.job.evaluate is not None and (
            finished or schedule.evaluate.due(state.step, before, loop.elapsed)
        )
        checkpoint_due = schedule.checkpoint.due(state.step, before, loop.elapsed) and loop.streak == 0
        if evaluate or checkpoint_due or finished:
            self._synchronise()
        improved = False
        if evaluate:
            # A signal asks for haste: the evaluation waits for the resumed run, which then writes the same row.
            if signals.received is not None and not finished:
                loop.evaluation_pending = True
            else:
                improved = self._evaluate()
        if checkpoint_due or improved:
            self._save()

    def _most_steps(self) -> int:
        """Steps until something may be due that is due by the step."""
        step, schedule, limits = self.job.state.step, self.job.schedule, self.job.limits
        periods = (schedule.metrics, schedule.evaluate.steps, schedule.checkpoint.steps)
        most = [period - step % period for period in periods if period]
        if limits.steps is not None:
            most.append(limits.steps - step)
        elif limits.max_useful_steps:
            most.append(limits.max_useful_steps - step)
        if limits.replay is not None:
            record = limits.replay
            moments = (record.final_step, *(at for at, _ in (*record.horizons, *record.rollbacks)))
            most += [at - step for at in moments if at > step]
        return max(1, min(most))

    def _count(self, report: StepReport) -> bool:
        """Take a report in; whether it led to a rollback, which makes nonsense of those that follow it."""
        loop = self.loop
        loop.window.add(report)
        if report.finite:
            loop.streak = 0
            return False
        loop.streak += 1
        if loop.streak == 1:
            message = f"step {report.step + 1} was not finite; the parameters are untouched"
            self._event("non-finite", message, level="warning")
        if loop.streak < NON_FINITE_LIMIT:
            return False
        self._roll_back()
        return True

    def _roll_back(self) -> None:
        """Take parameters from the last sound checkpoint and go on from the present step.

        The step counter is not taken back: draws are a function of the step, so going back would draw the same again.
        """
        state, loop = self.job.state, self.loop
        if len(loop.rollbacks) >= ROLLBACK_LIMIT:
            raise TrainingError(
                f"Training stays non-finite: {NON_FINITE_LIMIT} steps in a row at step {state.step}, after "
                f"{ROLLBACK_LIMIT} rollbacks.",
                hint="Lower the learning rate, and run `raymine check` on the scene; earlier checkpoints are kept.",
            )
        at, horizon = state.step, state.horizon
        back_to, tensors, scalars = self._sound_state()
        state.restore(tensors, scalars)
        state.step, state.horizon = at, horizon
        loop.rollbacks.append((at, back_to))
        loop.streak = 0
        self._event(
            "rollback",
            f"{NON_FINITE_LIMIT} non-finite steps in a row at step {at}; parameters set back to step {back_to}",
            level="warning",
            data={"at": at, "back_to": back_to},
        )

    def _sound_state(self) -> tuple[int, dict[str, Tensor], dict[str, JSON]]:
        """Where to roll back to: what a replay prescribes, else the newest whole checkpoint, else the initial state."""
        replay = self.job.limits.replay
        if replay is not None:
            prescribed = dict(replay.rollbacks).get(self.job.state.step)
            if prescribed in self._snapshots:
                return prescribed, *self._snapshots[prescribed]
        else:
            for step in reversed(checkpoint.list_steps(self.job.run.checkpoints)):
                found = self._load_sound(step)
                if found is not None:
                    return step, found.tensors, found.scalars
        fresh = self.job.fresh()
        return 0, fresh.tensors(), fresh.scalars()

    def _load_sound(self, step: int) -> checkpoint.Checkpoint | None:
        try:
            found = checkpoint.load(checkpoint.path_of(self.job.run.checkpoints, step))
        except CheckpointError as error:
            self._event("damaged-checkpoint", error.message, level="warning")
            return None
        # One saved in the middle of a bad streak (by a signal) holds the very parameters that fail now.
        return found if LoopState.from_json(found.meta["loop"]).streak == 0 else None

    def _keep_snapshot(self) -> None:
        replay, state = self.job.limits.replay, self.job.state
        if replay is not None and any(state.step == back_to for _, back_to in replay.rollbacks):
            tensors = {name: value.detach().clone() for name, value in state.tensors().items()}
            self._snapshots[state.step] = (tensors, dict(state.scalars()))

    def _set_first_horizon(self) -> None:
        limits, loop = self.job.limits, self.loop
        if limits.replay is not None:
            self._follow_replay()
        elif limits.steps is not None:
            self._set_horizon(limits.steps)
        elif limits.max_seconds is not None and loop.budget not in (None, limits.max_seconds) and loop.elapsed > 0:
            # A budget changed on resume: the speed so far is the best guess for the new one.
            self._set_horizon(self._estimate(limits.max_seconds))
        loop.budget = limits.max_seconds

    def _update_horizon(self, before: float) -> None:
        limits, state, loop = self.job.limits, self.job.state, self.loop
        if limits.replay is not None:
            self._follow_replay()
        elif limits.max_seconds is not None and not self._finished():
            moment = moment_passed(limits.max_seconds, before, loop.elapsed)
            if moment or state.step >= state.horizon:
                self._set_horizon(self._estimate(limits.max_seconds))
            if moment:
                loop.marks.append((state.step, loop.elapsed))

    def _estimate(self, budget: float) -> int:
        loop = self.loop
        return estimate(self.job.state.step, loop.elapsed, loop.marks, budget, self.job.limits.max_useful_steps)

    def _follow_replay(self) -> None:
        assert self.job.limits.replay is not None
        horizon = replayed(self.job.limits.replay.horizons, self.job.state.step)
        if horizon is not None:
            self._set_horizon(horizon)

    def _set_horizon(self, horizon: int) -> None:
        state, loop = self.job.state, self.loop
        recorded = loop.horizons[-1][1] if loop.horizons else None
        if horizon != state.horizon or horizon != recorded:
            state.horizon = horizon
            loop.horizons.append((state.step, horizon))
            self._event("horizon", f"schedule laid out for {horizon} steps", data={"horizon": horizon})

    def _finished(self) -> bool:
        limits = self.job.limits
        if limits.replay is not None:
            return self.job.state.step >= limits.replay.final_step
        if limits.steps is not None:
            return self.job.state.step >= limits.steps
        overfits = 0 < limits.max_useful_steps <= self.job.state.step
        return overfits or self.loop.elapsed >= (limits.max_seconds or 0.0)

    def _write_row(self) -> None:
        loop, window, state = self.loop, self.loop.window, self.job.state
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
        self._watchers.on_step(info)

    def _evaluate(self) -> bool:
        """Run the callback outside the training clock; whether it is the best so far."""
        self.loop.evaluation_pending = False
        if self.job.evaluate is None:
            return False
        started = self.job.now()
        found = self.job.evaluate()
        # NaN (every pixel masked) is no score; as the first best it could never be beaten.
        best = not math.isnan(found.psnr) and (self.loop.best is None or found.psnr > self.loop.best[1])
        if best:
            self.loop.best = (self.job.state.step, found.psnr)
        self._watchers.on_eval(EvalInfo(self.job.state.step, found.psnr, found.views, self.job.now() - started, best))
        return best

    def _save(self) -> None:
        """Checkpoint the present step, once."""
        state, loop, folder = self.job.state, self.loop, self.job.run.checkpoints
        if self._saved_step == state.step:
            return
        self.job.journal.sync()
        meta = {**self.job.meta, "loop": loop.to_json()}
        checkpoint.save(folder, state.step, state.tensors(), state.scalars(), meta, keep=self.job.schedule.keep)
        if loop.best is not None and loop.best[0] == state.step:
            checkpoint.mark_best(folder, checkpoint.Best(state.step, "psnr", loop.best[1]))
        self._saved_step = state.step
        self.job.on_checkpoint(loop)
        self._event("checkpoint", f"step {state.step} saved")

    def _synchronise(self) -> None:
        started = self.job.now()
        self.job.synchronise()
        self.loop.elapsed += self.job.now() - started

    def _event(self, kind: str, message: str, *, level: str = "info", data: dict[str, JSON] | None = None) -> None:
        self._watchers.on_event(Event(kind, message, self.job.state.step, level, data or {}))

    def _result(self, finished: bool, exit_code: int) -> RunResult:
        loop = self.loop
        return RunResult(
            run=self.job.run.path,
            status="finished" if finished else "stopped",
            exit_code=exit_code,
            step=self.job.state.step,
            elapsed=loop.elapsed,
            loss=loop.last_loss,
            psnr=loop.last_psnr,
            best_psnr=loop.best[1] if loop.best else None,
        )

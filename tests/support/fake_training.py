"""A training state small enough for tests that does real arithmetic: Adam on a quadratic with counter-based noise."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from raymine import checkpoint
from raymine.config import Schedule, to_json
from raymine.contracts import Rays, Rendered, StepReport
from raymine.errors import CheckpointError
from raymine.evaluate.quick import EvalSplit, QuickScore
from raymine.experiment.drive import Limits
from raymine.experiment.horizon import Replay
from raymine.experiment.loop import Loop, LoopSetup
from raymine.experiment.observers import Observer, SilentObserver
from raymine.experiment.request import RunResult
from raymine.experiment.saved.loopstate import LoopState
from raymine.experiment.watchers.journal import Journal
from raymine.rundir import Environment, Manifest, RunDir

SIZE = 64


@dataclass
class FakeState:
    """Tensors of several types; every step draws from (seed, step) only."""

    seed: int = 0
    step: int = 0
    horizon: int = 1000
    weights: Tensor = field(default_factory=lambda: torch.linspace(-1, 1, SIZE))
    moment: Tensor = field(default_factory=lambda: torch.zeros(SIZE))
    grid: Tensor = field(default_factory=lambda: torch.zeros(SIZE, dtype=torch.bool))
    half: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.bfloat16))
    count: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))
    rays: int = 128

    def tensors(self) -> dict[str, Tensor]:
        names = ("weights", "moment", "grid", "half", "count")
        return {name: getattr(self, name) for name in names}

    def scalars(self) -> dict[str, object]:
        return {"step": self.step, "horizon": self.horizon, "rays": self.rays}

    def non_finite(self) -> list[str]:
        return [name for name, value in self.tensors().items() if not torch.isfinite(value).all()]

    def restore(self, tensors: dict[str, Tensor], scalars: dict[str, object]) -> None:
        for name, mine in self.tensors().items():
            if name not in tensors or tensors[name].shape != mine.shape:
                raise CheckpointError(f"Tensor `{name}` is missing or has another shape.")
            mine.copy_(tensors[name])
        self.step, self.horizon, self.rays = scalars["step"], scalars["horizon"], scalars["rays"]  # type: ignore


def never(_: int) -> bool:
    return False


def advance(
    state: FakeState,
    *,
    poison: Callable[[int], bool] = never,
    overflow: Callable[[int], bool] = never,
    sleep: float = 0.0,
) -> StepReport:
    """One step. If `poison(step)` is true, the step is non-finite and changes no parameter.

    If `overflow(step)` is true, a parameter becomes infinite, though the step reports finite values.
    """
    generator = torch.Generator().manual_seed(state.seed * 1_000_003 + state.step)
    noise = torch.randn(SIZE, generator=generator)
    rate = 0.1 * (1 - state.step / (state.horizon + 1))
    gradient = state.weights - noise
    loss = float((gradient**2).mean())
    state.step += 1
    if sleep:
        time.sleep(sleep)
    if poison(state.step):
        return StepReport(state.step - 1, float("nan"), float("nan"), state.rays, 0, 0, rate, finite=False)
    state.moment.mul_(0.9).add_(gradient, alpha=0.1)
    state.weights.sub_(state.moment, alpha=rate)
    if overflow(state.step):
        state.weights[0] = torch.inf
    state.grid.copy_(state.weights > 0)
    state.half.copy_(state.weights[:3])
    state.count.add_(1)
    state.rays = 128 + state.step % 7
    return StepReport(
        state.step - 1, loss, loss / 3, state.rays, state.rays * 10, state.rays * 2, rate, extra={"tau": rate}
    )


def manifest(**changes: object) -> Manifest:
    values: dict[str, object] = {
        "name": "",
        "scene": "fake",
        "scene_digest": "s",
        "image_digest": "i",
        "recipe": "fake",
        "seed": 0,
        "status": "running",
        "started": "2030-01-01T00:00:00+00:00",
        "environment": Environment("0", None, "3", "test", {}, "cpu", 1),
    }
    return Manifest(**{**values, **changes})  # type: ignore


def open_run(path: Path) -> RunDir:
    """A locked run folder, new or existing."""
    if (path / "manifest.json").exists():
        return RunDir.open_locked(path)
    return RunDir.create(path, root=path.parent, stem="fake", config={"recipe": "fake"}, manifest=manifest())


def resume_into(run: RunDir, state: FakeState) -> LoopState:
    """Resume as `train` does: load the newest valid checkpoint, and rewind the checkpoint folder to it."""
    latest = checkpoint.load_latest(run.checkpoints)
    if latest is None:
        return LoopState()
    state.restore(latest.checkpoint.tensors, latest.checkpoint.scalars)
    loop = LoopState.from_json(latest.checkpoint.meta["loop"])
    checkpoint.rewind(run.checkpoints, latest.checkpoint.step, loop.best_marker())
    return loop


class FakeRenderer:
    """Renders nothing but the background."""

    def render(self, rays: Rays, background: Tensor) -> Rendered:
        nothing = torch.zeros(len(rays))
        return Rendered(background.expand(len(rays), 3), nothing, nothing, torch.zeros(0))


@dataclass(frozen=True)
class Options:
    """Options of a fake run."""

    steps: int | None = 40
    max_seconds: float | None = None
    replay: Replay | None = None
    max_useful_steps: int = 0
    schedule: Schedule = field(default_factory=Schedule)
    evaluate: bool = False
    split: EvalSplit = "test"
    """Which views are evaluated."""
    poison: Callable[[int], bool] = lambda _: False
    sleep: float = 0.0
    now: Callable[[], float] = time.perf_counter
    burst: int = 1
    overflow: Callable[[int], bool] = lambda _: False
    """Whether a step (from 1) makes a parameter infinite although its loss and gradient are finite."""
    lose: Callable[[int], int] = lambda _: 0
    """Number of rays that a step (from 1) loses for lack of capacity."""


def score(state: FakeState) -> float:
    """The PSNR of an evaluation."""
    return 20 + float(state.weights.mean())


def train(path: Path, options: Options, observer: Observer | None = None) -> tuple[RunResult, FakeState, LoopState]:
    """Train a fake state in `path`, resuming what is there."""
    state = FakeState()
    with open_run(path) as run:
        loop = resume_into(run, state)
        journal = Journal(run, state.step)
        setup = LoopSetup(
            run=run,
            state=state,
            advance=lambda most: [
                replace(report, lost=options.lose(report.step + 1))
                for report in (
                    advance(state, poison=options.poison, overflow=options.overflow, sleep=options.sleep)
                    for _ in range(min(most, options.burst))
                )
            ],
            renderer=FakeRenderer,
            hard_view=lambda *_, **__: None,
            fresh=FakeState,
            schedule=options.schedule,
            limits=Limits(options.steps, options.max_seconds, options.replay, options.max_useful_steps),
            meta={"recipe": "fake"},
            journal=journal,
            observer=observer or SilentObserver(),
            evaluate=(lambda: QuickScore(score(state), 1, options.split)) if options.evaluate else None,
            now=options.now,
        )
        try:
            result = Loop(setup, loop).run()
        finally:
            journal.close()
    return result, state, loop


def deterministic(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Metric rows without the fields that depend on the clock."""
    timed = ("elapsed", "seconds", "samples_per_second")
    return [{key: value for key, value in row.items() if key not in timed} for row in rows]


def assert_same_state(a: FakeState, b: FakeState) -> None:
    assert to_json(a.scalars()) == to_json(b.scalars())
    for name, tensor in a.tensors().items():
        other = b.tensors()[name]
        assert tensor.dtype == other.dtype, name
        assert torch.equal(tensor, other), name

"""Observers of a run. The loop calls them when something happens, and ignores what they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from raymine.contracts import Renderer, Scene
from raymine.evaluate.quick import EvalSplit
from raymine.files import JSON
from raymine.step.hardness import HardView

from .request import RunResult


@dataclass(frozen=True)
class StartInfo:
    """A run that starts to train, from `step` and `elapsed` training seconds. `steps` or `max_seconds` is set.

    max_useful_steps: a run limited by `max_seconds` ends after this many steps at the latest; 0: no such limit.
    notes: sentences for the user about decisions, such as the format of the scene. details: reasons, for
    users who ask for them. warnings: sentences about problems
    of the scene that do not prevent training. source: the scene as it is trained on. trained: indices of its frames
    that are trained on.
    """

    run: Path
    scene: str
    recipe: str
    device: str
    step: int
    elapsed: float
    steps: int | None
    max_seconds: float | None
    max_useful_steps: int = 0
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    source: Scene | None = None
    trained: tuple[int, ...] = ()

    @property
    def last_step(self) -> int:
        """The step at which the run ends, unless its time ends first; 0 if only time limits it."""
        return self.max_useful_steps if self.steps is None else self.steps


@dataclass(frozen=True)
class StepInfo:
    """The steps since the last such report: means over the finite ones.

    Deterministic: step, loss, psnr (dB, of the mean squared error), rays, marched and trained samples per step,
    learning_rate, skipped (number of non-finite steps), extra. Measured: elapsed (training seconds so far),
    samples_per_second and, in a time-limited run, horizon (expected total steps).
    """

    step: int
    loss: float | None
    psnr: float | None
    rays: int
    marched: int
    trained: int
    learning_rate: float
    elapsed: float
    horizon: int
    samples_per_second: float
    skipped: int = 0
    extra: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EvalInfo:
    """A quick evaluation: mean PSNR (dB) over `views` views of `split`.

    seconds: duration of the evaluation. best: whether it is the best so far. Only an evaluation of views held out from
    training can be; an evaluation of test views never is.
    """

    step: int
    psnr: float
    views: int
    seconds: float
    split: EvalSplit = "test"
    best: bool = False


@dataclass(frozen=True)
class Event:
    """An event for the log. kind: a short word (checkpoint, non-finite, rollback, horizon, resume, signal, ...)."""

    kind: str
    message: str
    step: int
    level: str = "info"
    data: dict[str, JSON] = field(default_factory=dict)


class HardViews(Protocol):
    """Looks at training images as they are trained on."""

    def __call__(self, index: int, longest: int, *, unwanted: Callable[[], bool]) -> HardView | None:
        """Where training image `index` is hard, at most `longest` pixels a side; None if it became `unwanted`."""
        ...


@dataclass(frozen=True)
class LiveRun:
    """A run between two bursts of steps: steps taken and training seconds so far.

    renderer: makes a renderer of the current model. hard_view: where a training image is hard for it. Both cost nothing
    unless they are called. Call them in `on_burst`, and use the renderer before returning, because training then
    changes the model.
    """

    step: int
    elapsed: float
    renderer: Callable[[], Renderer]
    hard_view: HardViews


class Observer(Protocol):
    """Receives the events of a run. Methods run on the training thread, so they should be fast.

    `on_step` is called with every metrics row, `on_burst` whenever the engine has advanced, by one step or by many. The
    training clock is stopped during all of them.
    """

    def on_start(self, info: StartInfo) -> None: ...

    def on_burst(self, live: LiveRun) -> None: ...

    def on_step(self, info: StepInfo) -> None: ...

    def on_event(self, event: Event) -> None: ...

    def on_eval(self, info: EvalInfo) -> None: ...

    def on_end(self, result: RunResult) -> None: ...


class SilentObserver:
    """An observer that does nothing; a base class for observers that implement a few methods."""

    def on_start(self, info: StartInfo) -> None:
        return None

    def on_burst(self, live: LiveRun) -> None:
        return None

    def on_step(self, info: StepInfo) -> None:
        return None

    def on_event(self, event: Event) -> None:
        return None

    def on_eval(self, info: EvalInfo) -> None:
        return None

    def on_end(self, result: RunResult) -> None:
        return None


class Observers:
    """Several observers as one. They are called in the order given."""

    def __init__(self, members: Sequence[Observer]) -> None:
        self._members = tuple(members)

    def on_start(self, info: StartInfo) -> None:
        for member in self._members:
            member.on_start(info)

    def on_burst(self, live: LiveRun) -> None:
        for member in self._members:
            member.on_burst(live)

    def on_step(self, info: StepInfo) -> None:
        for member in self._members:
            member.on_step(info)

    def on_event(self, event: Event) -> None:
        for member in self._members:
            member.on_event(event)

    def on_eval(self, info: EvalInfo) -> None:
        for member in self._members:
            member.on_eval(info)

    def on_end(self, result: RunResult) -> None:
        for member in self._members:
            member.on_end(result)

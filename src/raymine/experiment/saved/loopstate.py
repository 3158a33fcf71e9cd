"""The state of the loop, besides the training state. Every checkpoint saves it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from raymine.checkpoint import Best
from raymine.config import from_json, to_json
from raymine.contracts import StepReport
from raymine.files import JSON

from ..drive import DriveState


@dataclass
class Window:
    """Sums over the steps since the last metrics row. They are saved, so that a resumed run writes the same row."""

    steps: int = 0
    skipped: int = 0
    loss: float = 0.0
    mse: float = 0.0
    rays: int = 0
    marched: int = 0
    trained: int = 0
    learning_rate: float = 0.0
    extra: dict[str, float] = field(default_factory=dict)

    def add(self, report: StepReport) -> None:
        """Add one step; a non-finite step only counts as skipped."""
        self.learning_rate = report.learning_rate
        if not report.finite:
            self.skipped += 1
            return
        self.steps += 1
        self.loss += report.loss
        self.mse += report.mse
        self.rays += report.rays
        self.marched += report.marched
        self.trained += report.trained
        self.extra = dict(report.extra)

    @property
    def empty(self) -> bool:
        return self.steps + self.skipped == 0

    @property
    def mean_loss(self) -> float | None:
        return self.loss / self.steps if self.steps else None

    @property
    def psnr(self) -> float | None:
        """PSNR (dB) of the mean squared error over the window; None if no step was finite."""
        if not self.steps:
            return None
        return -10.0 * math.log10(max(self.mse / self.steps, 1e-10))

    def per_step(self, total: int) -> int:
        return round(total / self.steps) if self.steps else 0


@dataclass(frozen=True)
class Scores:
    """PSNR values (dB) of a run, under the names that results, manifests and the index of runs share.

    train_psnr: of the training rays of the last metrics row. test_psnr, held_out_psnr: of the quick evaluation at the
    last step; None if there was none at that step. quick_protocol: what these were measured on, where that is known.
    best_step, best_held_out_psnr: of the best checkpoint.
    """

    train_psnr: float | None
    test_psnr: float | None
    held_out_psnr: float | None
    quick_protocol: dict[str, JSON] | None
    best_step: int | None
    best_held_out_psnr: float | None


def _at(look: tuple[int, float] | None, step: int) -> float | None:
    """The PSNR of an evaluation (step, dB), if it was at `step`."""
    return look[1] if look is not None and look[0] == step else None


@dataclass
class LoopState(DriveState):
    """The state of the driver, and the rollbacks, evaluations and metric sums of the loop.

    rollbacks: (at step, back to step). test, held_out: (step, dB) of the latest quick evaluation of test views and of
    views held out from training. best: (step, dB) of the best evaluation of held-out views. evaluation_pending: a
    signal stopped the run before an evaluation that was due. window_from: `elapsed` at the start of the window.
    measured: what the latest quick evaluation was measured on (`evaluate.quick.quick_protocol`).
    looks: errors of every training image at the first and the latest look (see `guard`).
    """

    rollbacks: list[tuple[int, int]] = field(default_factory=list)
    test: tuple[int, float] | None = None
    held_out: tuple[int, float] | None = None
    best: tuple[int, float] | None = None
    evaluation_pending: bool = False
    last_loss: float | None = None
    last_psnr: float | None = None
    window: Window = field(default_factory=Window)
    window_from: float = 0.0
    measured: dict[str, JSON] = field(default_factory=dict)
    looks: list[tuple[float, ...]] = field(default_factory=list)

    def scores(self, step: int) -> Scores:
        """The scores of the model at `step`, the current step."""
        best_step, best = self.best or (None, None)
        test, held_out = _at(self.test, step), _at(self.held_out, step)
        known = self.measured if (test, held_out) != (None, None) and self.measured else None
        return Scores(self.last_psnr, test, held_out, known, best_step, best)

    def best_marker(self) -> Best | None:
        """The marker of the best checkpoint; None if no evaluation has selected one."""
        return None if self.best is None else Best(self.best[0], "held_out_psnr", self.best[1])

    def to_json(self) -> JSON:
        return to_json(self)

    @staticmethod
    def from_json(data: JSON) -> LoopState:
        return from_json(LoopState, data, "loop")

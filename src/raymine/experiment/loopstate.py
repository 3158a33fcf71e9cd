"""What the loop carries besides the training state, all of it saved in every checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from raymine.config import from_json, to_json
from raymine.contracts import StepReport
from raymine.files import JSON

from .drive import DriveState


@dataclass
class Window:
    """Sums over the steps since the last metrics row; saved, so that a run stopped half way writes the same row."""

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
        """Count one step; a non-finite one counts as skipped only."""
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
        """dB of the mean squared error over the window; None when no step was finite."""
        if not self.steps:
            return None
        return -10.0 * math.log10(max(self.mse / self.steps, 1e-10))

    def per_step(self, total: int) -> int:
        return round(total / self.steps) if self.steps else 0


@dataclass
class LoopState(DriveState):
    """What the driver carries, and the recoveries, evaluations and running averages of a loop.

    rollbacks: (at step, back to step). best: (step, dB). evaluation_pending: a signal came before an evaluation that
    was due. window_from: `elapsed` when the window began.
    """

    rollbacks: list[tuple[int, int]] = field(default_factory=list)
    best: tuple[int, float] | None = None
    evaluation_pending: bool = False
    last_loss: float | None = None
    last_psnr: float | None = None
    window: Window = field(default_factory=Window)
    window_from: float = 0.0

    def to_json(self) -> JSON:
        return to_json(self)

    @staticmethod
    def from_json(data: JSON) -> LoopState:
        return from_json(LoopState, data, "loop")

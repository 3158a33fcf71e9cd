"""What `train` is asked and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from raymine.errors import ConfigError, option
from raymine.files import JSON
from raymine.recipes import DEFAULT, AnyRecipe, packages_of

from .horizon import Replay

RunStatus = Literal["finished", "stopped"]


@dataclass(frozen=True)
class TrainRequest:
    """One training run, as a user asks for it.

    scene: a scene folder, or the word "builtin". recipe: a registered name, `package.module:function` (which is then
    imported), a function (scene, device) -> TrainConfig, or a TrainConfig.
    out: the run folder; None takes the next free `<runs_root>/<scene>-<recipe>-<n>`.
    steps / max_seconds: at most one of them; neither takes the recipe's own number of steps. max_seconds counts
    training only. overrides: fields of the recipe's config to replace, by dotted name (`{"mining.policy": "hard"}`).
    replay: step counts and learning-rate horizons recorded by another run, to repeat a time-limited run exactly.
    hold_out: so many training views, evenly spread, are not trained on. Quick evaluations then go to these instead of
    the test views, and only these select a best checkpoint.
    evaluate_views: test views sampled by each quick evaluation (0 turns it off). command: recorded in the manifest.
    allow: packages whose classes a stored config or an override may name; they are imported.
    """

    scene: str | Path
    recipe: AnyRecipe = DEFAULT
    out: Path | None = None
    resume: bool = False
    steps: int | None = None
    max_seconds: float | None = None
    seed: int = 0
    device: str = "auto"
    downscale: int = 1
    hold_out: int = 0
    overrides: Mapping[str, JSON] = field(default_factory=dict)
    evaluate_views: int = 8
    replay: Replay | None = None
    runs_root: Path = Path("runs")
    command: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.steps is not None and self.max_seconds is not None:
            raise ConfigError(
                f"{option('steps', self.steps)} and {option('max_seconds', self.max_seconds)} were both given; "
                "a run has one limit.",
                hint="Drop one of them.",
            )
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"{option('steps')} must be at least 1, got {self.steps}.")
        if self.max_seconds is not None and not 0 < self.max_seconds < float("inf"):
            raise ConfigError(f"{option('max_seconds')} must be a positive number of seconds, got {self.max_seconds}.")
        if self.downscale < 1:
            raise ConfigError(f"{option('downscale')} must be a whole number from 1 up, got {self.downscale}.")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"{option('seed')} must be between 0 and 2^63 - 1, got {self.seed}.")
        if self.hold_out < 0:
            raise ConfigError(f"{option('hold_out')} must be 0 or more views, got {self.hold_out}.")
        if self.evaluate_views < 0:
            raise ConfigError(f"{option('evaluate_views')} must be 0 or more, got {self.evaluate_views}.")

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages whose modules this request allows to import."""
        return (*self.allow, *packages_of(self.recipe))


@dataclass(frozen=True)
class RunResult:
    """How a run ended. `exit_code` is 0, or 128 + the signal that stopped it; `elapsed` counts training seconds only.

    `loss` and `train_psnr` (dB) are the last recorded training values. `test_psnr` and `held_out_psnr` are quick
    evaluations of the model that was written, at `step`: on test views, or on views held out from training; None where
    there was none. `best_step` and `best_held_out_psnr` name the best checkpoint; only held-out views select one.
    """

    run: Path
    status: RunStatus
    exit_code: int
    step: int
    elapsed: float
    loss: float | None
    train_psnr: float | None = None
    test_psnr: float | None = None
    held_out_psnr: float | None = None
    best_step: int | None = None
    best_held_out_psnr: float | None = None

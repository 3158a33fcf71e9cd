"""The request and the result of `train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from raymine.config import InitFrom, require_seconds, require_steps
from raymine.errors import ConfigError, option
from raymine.files import JSON
from raymine.kernels.dispatch import MOST_THREADS
from raymine.quantities import size
from raymine.recipes import AUTO, AnyRecipe, packages_of
from raymine.recipes.techniques import Techniques
from raymine.scenes.bank.pack import LEAST_BUDGET
from raymine.tracking import require_backends

from .horizon import Replay

RunStatus = Literal["finished", "stopped"]


@dataclass(frozen=True)
class TrainRequest:
    """A training run as the user asks for it.

    scene: a scene folder, or "builtin".
    recipe: a registered name, `package.module:function` (which is then imported), a function (scene, device) ->
        TrainConfig, or a TrainConfig. "auto" is the recipe of a resumed run, or the one that suits the scene.
    recipe_name: the name under which a TrainConfig is recorded.
    out: the run folder; None uses the next free `<runs_root>/<scene>-<recipe>-<n>`.
    resume: continue the run in `out`.
    steps, max_seconds: the limit; give at most one. Without either, the recipe's own number of steps is the limit.
        `max_seconds` counts training steps only.
    hold_out: number of training views, evenly spread, that are not trained on. Quick evaluations then use these instead
        of test views, and only these select a best checkpoint.
    leave_out: names of training images that are not trained on (`scenes/names.py`).
    init_from: another run, whose parameters this one starts from (`experiment/saved/start_from.py`); an `InitFrom`
        names one checkpoint of it.
    techniques: accelerations and loss terms to add to the recipe's config (`recipes/techniques.py`).
    overrides: fields of the recipe's config to replace, by dotted name (`{"mining.policy": "hard"}`).
    evaluate_views: number of test views of each quick evaluation; 0 turns it off.
    replay: steps and learning-rate horizons that another run recorded, to repeat a time-limited run exactly.
    gpu_memory: bytes of a GPU that the run may take; None for what is free.
    bank_budget: bytes of main memory that the images may take; None for half of what is free. Beyond it pixels are read
        from the file. The result is the same.
    threads: threads of a CPU run; None is all cores, or the number that a resumed run began with. The bits of a run
        may depend on it (`kernels/threads.py`).
    track: trackers that receive the metrics besides metrics.jsonl (`tracking.BACKENDS`).
    profile: write a profiler trace of a few steps to the folder `profile` of the run.
    command: the command line, recorded in the manifest.
    allow: packages from which a stored config or an override may use classes. They are imported.
    """

    scene: str | Path
    recipe: AnyRecipe = AUTO
    recipe_name: str = ""
    out: Path | None = None
    resume: bool = False
    steps: int | None = None
    max_seconds: float | None = None
    seed: int = 0
    device: str = "auto"
    downscale: int = 1
    hold_out: int = 0
    leave_out: tuple[str, ...] = ()
    init_from: Path | InitFrom | None = None
    techniques: Techniques = field(default_factory=Techniques)
    overrides: Mapping[str, JSON] = field(default_factory=dict)
    evaluate_views: int = 8
    replay: Replay | None = None
    threads: int | None = None
    gpu_memory: int | None = None
    bank_budget: int | None = None
    runs_root: Path = Path("runs")
    track: tuple[str, ...] = ()
    profile: bool = False
    command: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.steps is not None and self.max_seconds is not None:
            raise ConfigError(
                f"{option('steps', self.steps)} and {option('max_seconds', self.max_seconds)} were both given; "
                "a run has one limit.",
                hint="Drop one of them.",
            )
        if self.steps is not None:
            require_steps(self.steps)
        if self.max_seconds is not None:
            require_seconds(self.max_seconds)
        if self.downscale < 1:
            raise ConfigError(f"{option('downscale')} must be a whole number of at least 1, got {self.downscale}.")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"{option('seed')} must be between 0 and 2^63 - 1, got {self.seed}.")
        if self.hold_out < 0:
            raise ConfigError(f"{option('hold_out')} must be 0 or more views, got {self.hold_out}.")
        if self.threads is not None and not 1 <= self.threads <= MOST_THREADS:
            raise ConfigError(f"{option('threads')} must be between 1 and {MOST_THREADS}, got {self.threads}.")
        if self.bank_budget is not None and self.bank_budget < LEAST_BUDGET:
            raise ConfigError(
                f"{option('bank_budget')} must be at least {size(LEAST_BUDGET)}, got {size(self.bank_budget)}.",
                hint="Leave it out for half of the memory that is free.",
            )
        if self.evaluate_views < 0:
            raise ConfigError(f"{option('evaluate_views')} must be 0 or more, got {self.evaluate_views}.")
        require_backends(self.track)

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that may be imported for this request."""
        return (*self.allow, *packages_of(self.recipe))


@dataclass(frozen=True)
class RunResult:
    """How a run ended. `exit_code` is 0, or 128 + the signal that stopped it.

    `elapsed` counts training seconds only, those of earlier processes included. `wall` counts all seconds of this
    process (from the command line) or of this call (from Python): loading, compiling, training, evaluating, saving.

    `loss` and `train_psnr` (dB) are the last recorded training values. `test_psnr` and `held_out_psnr` (dB) are quick
    evaluations of the final model, on test views or on views held out from training; None if there was none at `step`.
    `best_step` and `best_held_out_psnr` describe the best checkpoint, which only held-out views select.
    `pose_degrees` and `pose_distance` are the mean correction of the poses, the latter as a share of the scale of the
    scene; None if poses were not refined.

    `hard_images`: names of training images that stay hard while the others improve, when the run has finished. Their
    poses are probably wrong.
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
    wall: float = 0.0
    pose_degrees: float | None = None
    pose_distance: float | None = None
    hard_images: tuple[str, ...] = ()

"""Training with a PyTorch Lightning `Trainer`: the engines and the state of `raymine.train` in a LightningModule.

    data = RaymineData("builtin", downscale=4)
    Trainer(max_steps=500).fit(RaymineModule(data, recipe="ngp"), data)

A batch is a step number: which rays a step trains on is a function of the seed and the step, so there is no loader of
pixels. The model is a `TrainState`, which is not a submodule: Lightning moves and converts submodules, and engines keep
views of the parameters. Checkpoints hold the state under the key "raymine". docs/lightning.md says when to use this.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from raymine.config import differences
from raymine.contracts import Scene, StepReport, targets_of
from raymine.engines import Engine, engine_for
from raymine.errors import CheckpointError, ConfigError, MissingExtraError, TrainingError, option
from raymine.evaluate.quick import QuickEvaluation
from raymine.experiment import TrainRequest, evaluation_frames, open_data
from raymine.experiment.drive import NON_FINITE_LIMIT
from raymine.experiment.memory import memory_errors, require_memory
from raymine.experiment.prepare import Prepared, prepare, split_training
from raymine.files import JSON
from raymine.recipes import AUTO, AnyRecipe
from raymine.step import TrainState, create_state

try:
    from pytorch_lightning import LightningDataModule, LightningModule
    from pytorch_lightning.core.optimizer import LightningOptimizer
except ImportError as error:
    raise MissingExtraError("pytorch-lightning", "lightning", "`raymine.lightning`") from error

__all__ = ["RaymineData", "RaymineModule"]

_KEY = "raymine"
_LOOKS = 4
"""Epochs of a fit with `max_steps`, and so validations, where `epoch_steps` is None."""
_EPOCH = 1000
"""Steps of an epoch in a fit without `max_steps`."""


class RaymineData(LightningDataModule):
    """The images of a scene. Training images are those that `raymine.train` trains on with the same options.

    scene: a scene folder, or "builtin". downscale: divide the size of the images by this.
    hold_out: training views, evenly spread, that are validated on and not trained on. Without any, test views are.
    leave_out: names of training images that are not trained on.
    views: test views of a validation; 0 turns validation off.
    epoch_steps: steps of an epoch. Lightning validates after each. None: a quarter of the `max_steps` of the Trainer.
    """

    def __init__(
        self,
        scene: str | Path,
        *,
        downscale: int = 1,
        hold_out: int = 0,
        leave_out: Sequence[str] = (),
        views: int = 8,
        epoch_steps: int | None = None,
    ) -> None:
        super().__init__()
        if epoch_steps is not None and epoch_steps < 1:
            raise ConfigError(f"{option('epoch_steps')} must be at least 1, got {epoch_steps}.")
        self.scene, self.downscale, self.hold_out, self.leave_out = scene, downscale, hold_out, tuple(leave_out)
        self.views, self.epoch_steps = views, epoch_steps

    def validation_frames(self, scene: Scene) -> tuple[int, ...]:
        """The frames of a validation: those that are held out, else test views; none if `views` is 0."""
        if not self.views:
            return ()
        return split_training(scene, self.hold_out, self.leave_out)[1] or evaluation_frames(scene, self.views)

    def steps_per_epoch(self) -> int:
        """Steps of an epoch in the present fit."""
        planned = -1 if self.trainer is None else self.trainer.max_steps
        return self.epoch_steps or (max(1, planned // _LOOKS) if planned > 0 else _EPOCH)

    def train_dataloader(self) -> Any:
        return _StepNumbers(self.steps_per_epoch())

    def val_dataloader(self) -> Any:
        """One batch, in which all views are evaluated. Lightning warns about a loader without batches."""
        return _StepNumbers(1)

    test_dataloader = val_dataloader


class _StepNumbers:
    """The numbers 0 .. count - 1. Lightning saves and restores the position through `state_dict`."""

    def __init__(self, count: int) -> None:
        self._count, self._position, self._begin = count, 0, 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        begin, self._begin = self._begin, 0
        for number in range(begin, self._count):
            self._position = number + 1
            yield number

    def state_dict(self) -> dict[str, int]:
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._begin = state["position"] % max(1, self._count)


class _EngineStep(torch.optim.Optimizer):
    """The engine as Lightning sees it: `step` trains one step, so that Lightning counts it.

    It has no state of its own. Moments and learning rates belong to the `TrainState`.
    """

    def __init__(self, state: TrainState, advance: Callable[[int], list[StepReport]]) -> None:
        super().__init__(list(state.optimiser.parameters.values()), {"lr": state.config.optimiser.lr})
        self._advance = advance
        self.report: StepReport | None = None

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            # It calls `on_before_optimizer_step` of callbacks.
            closure()
        # Lightning counts calls. Engines that can take several steps in one call are asked for one.
        (self.report,) = self._advance(1)
        for group in self.param_groups:
            group["lr"] = self.report.learning_rate


@dataclass(frozen=True)
class _Model:
    """What `setup` builds. evaluate: PSNR of the views of a validation; None if there are none."""

    prepared: Prepared
    state: TrainState
    engine: Engine
    evaluate: Callable[[], float] | None


class RaymineModule(LightningModule):
    """A radiance field that a `Trainer` trains on `data`, with the step of `raymine.train`.

    data: also given to `Trainer.fit`. recipe, seed, overrides: as for `raymine.train`.
    steps: length of the learning-rate schedule. None: the steps that the Trainer is set to, else those of the recipe.

    Logged: `loss`, `train_psnr`, `share_trained` (samples trained on / samples placed), `rays` and `learning_rate` in
    each step; `test_psnr`, or `held_out_psnr` with `hold_out`, in each validation.
    """

    def __init__(
        self,
        data: RaymineData,
        *,
        recipe: AnyRecipe = AUTO,
        seed: int = 0,
        steps: int | None = None,
        overrides: Mapping[str, JSON] | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        # Lightning would register a module, and a data module is none of this model's submodules.
        self._data, self._recipe, self._seed = data, recipe, seed
        self._steps, self._overrides = steps, dict(overrides or {})
        self._model: _Model | None = None
        self._saved: dict[str, Any] | None = None
        self._streak = 0
        self._resources = contextlib.ExitStack()
        # A module may be fitted, validated and tested again, so the images stay open as long as it lives.
        weakref.finalize(self, self._resources.close)

    @property
    def state(self) -> TrainState:
        """The training state. It exists once a Trainer has set the module up."""
        return self._ready.state

    @property
    def engine(self) -> Engine:
        """What trains the state. `engine.renderer()` renders the model."""
        return self._ready.engine

    @property
    def _ready(self) -> _Model:
        if self._model is None:
            raise ConfigError("The model does not exist yet.", hint="Call fit, validate or test of a Trainer first.")
        return self._model

    def setup(self, stage: str) -> None:
        """Load the images and build the model on the device of the Trainer, once."""
        self._require_trainer()
        device = self.trainer.strategy.root_device
        if self._model is not None:
            if self._model.state.device != device:
                raise ConfigError(f"The model is on {self._model.state.device}, and this Trainer uses {device}.")
            return
        self._model = self._build(device)
        if stage == "fit":
            with memory_errors(device):
                self._model.engine.warm_up()
        if self._saved is not None:
            self._restore(self._saved)

    def _require_trainer(self) -> None:
        trainer = self.trainer
        if getattr(trainer, "datamodule", None) is not self._data:
            raise ConfigError(
                "The Trainer was not given the data of the module.",
                hint="Give it the same RaymineData: trainer.fit(RaymineModule(data), data).",
            )
        if trainer.world_size > 1:
            raise ConfigError(
                f"raymine.lightning trains on one device, and the Trainer has {trainer.world_size}.",
                hint="Use Trainer(devices=1).",
            )
        if trainer.precision != "32-true":
            raise ConfigError(
                f"The recipe chooses the precision of each kernel, and the Trainer asks for {trainer.precision}.",
                hint="Leave out `precision`, and use RaymineModule(data, overrides={'amp': 'bf16'}).",
            )

    def _build(self, device: torch.device) -> _Model:
        data = self._data
        request = TrainRequest(
            data.scene,
            recipe=self._recipe,
            seed=self._seed,
            device=str(device),
            downscale=data.downscale,
            hold_out=data.hold_out,
            leave_out=data.leave_out,
            overrides=self._overrides,
            evaluate_views=data.views,
        )
        prepared = prepare(request)
        scene, config = prepared.scene, prepared.config.train
        require_memory(config, scene.bounds, device)
        with memory_errors(device):
            frames, _ = split_training(scene, data.hold_out, data.leave_out)
            depths = "depth" in targets_of(config.loss)
            opened = self._resources.enter_context(open_data(scene, frames, device, None, depths=depths))
            state = create_state(config, opened.train, seed=self._seed, device=device)
            engine = engine_for(state, opened.train)
        views = data.validation_frames(scene)
        if not views:
            return _Model(prepared, state, engine, None)
        shown = self._resources.enter_context(open_data(scene, views, device, None)).train
        quick = QuickEvaluation(shown, scene.background or (0.0, 0.0, 0.0))
        return _Model(prepared, state, engine, lambda: quick.psnr(engine.renderer()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return _EngineStep(self.state, self.engine.advance)

    def on_train_start(self) -> None:
        """Set the length of the learning-rate schedule, as the plain loop does when a run starts or resumes."""
        trainer, epochs = self.trainer, self.trainer.max_epochs or -1
        planned = [self._steps or 0, trainer.max_steps, epochs * self._data.steps_per_epoch()]
        self.state.horizon = next((n for n in planned if n > 0), self.state.config.default_steps)

    def training_step(self, batch: int, batch_idx: int) -> None:
        """Train one step and log it."""
        wrapped = cast("LightningOptimizer", self.optimizers())
        wrapped.step()
        report = cast("_EngineStep", wrapped.optimizer).report
        assert report is not None
        self._streak = 0 if report.finite else self._streak + 1
        if self._streak >= NON_FINITE_LIMIT:
            raise TrainingError(
                f"Training stays non-finite at step {report.step}.",
                hint="Run `raymine check` on the scene, or continue from an earlier checkpoint with another seed.",
            )
        if report.finite:
            self.log("train_psnr", -10.0 * math.log10(max(report.mse, 1e-10)), prog_bar=True)
            self.log_dict(
                {
                    "loss": report.loss,
                    "share_trained": report.trained / max(1, report.marched),
                    "rays": float(report.rays),
                    "learning_rate": report.learning_rate,
                }
            )

    def validation_step(self, batch: int, batch_idx: int) -> None:
        """Log the PSNR of the quick evaluation, which is that of the plain loop."""
        evaluate = self._ready.evaluate
        if evaluate is None:
            return
        # Lightning validates in inference mode. Tensors that are made and kept there could not be trained with.
        with torch.inference_mode(False), torch.no_grad():
            score = evaluate()
        name = "held_out_psnr" if self._data.hold_out else "test_psnr"
        self.log(name, score, prog_bar=True, batch_size=1, on_step=False, on_epoch=True)

    test_step = validation_step

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add a copy of the whole training state, its config and the digest of its scene."""
        model = self._ready
        checkpoint[_KEY] = {
            "tensors": {name: value.detach().clone() for name, value in model.state.tensors().items()},
            "scalars": model.state.scalars(),
            "config": model.prepared.config.to_json()["train"],
            "scene": model.prepared.digest,
            "streak": self._streak,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the training state; when there is no model yet, as soon as there is one."""
        if _KEY not in checkpoint:
            raise CheckpointError("The checkpoint was not written by a RaymineModule.")
        if self._model is None:
            self._saved = checkpoint[_KEY]
        else:
            self._restore(checkpoint[_KEY])

    def _restore(self, saved: dict[str, Any]) -> None:
        model, self._saved = self._ready, None
        if saved["scene"] != model.prepared.digest:
            raise CheckpointError(
                "The checkpoint is of another scene: frames, poses or cameras differ.",
                hint="Give RaymineData the scene and the `downscale` that it was trained with.",
            )
        changed = differences(saved["config"], model.prepared.config.to_json()["train"], stored_in="in the checkpoint")
        if changed:
            raise CheckpointError(
                f"The checkpoint has another config: {'; '.join(changed[:5])}.",
                hint="Give RaymineModule the recipe and the overrides that it was trained with.",
            )
        model.state.restore(saved["tensors"], saved["scalars"])
        self._streak = int(saved["streak"])

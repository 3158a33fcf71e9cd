"""The engines and the state of `raymine.train` in a LightningModule, with manual optimisation."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.core.optimizer import LightningOptimizer

from raymine.config import differences
from raymine.contracts import StepReport, targets_of
from raymine.engines import Engine, engine_for
from raymine.errors import CheckpointError, ConfigError, TrainingError
from raymine.evaluate.quick import QuickEvaluation
from raymine.experiment import TrainRequest, open_data
from raymine.experiment.drive import NON_FINITE_LIMIT
from raymine.experiment.memory import memory_errors, require_memory
from raymine.experiment.prepare import Prepared, prepare, split_training
from raymine.experiment.several import facts_of, together
from raymine.files import JSON
from raymine.recipes import AUTO, AnyRecipe
from raymine.step import TrainState, create_state
from raymine.step.config import Amp
from raymine.step.distributed.ranks import SOLO, Ranks

from .data import RaymineData
from .trainer import amp_of, hands_back, in_charge, ranks_of, remedies, require_strategy

_KEY = "raymine"


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
    """What `setup` builds. amp: what the Trainer asked for. evaluate: PSNR of a validation; None without views."""

    prepared: Prepared
    amp: Amp | None
    state: TrainState
    engine: Engine
    evaluate: Callable[[], float] | None


class RaymineModule(LightningModule):
    """A radiance field that a `Trainer` trains on `data`, with the step of `raymine.train`.

    data: also given to `Trainer.fit`. recipe, seed, overrides: as for `raymine.train`. The precision of the Trainer
    sets `amp`, and its processes share the rays of each step.
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
        self._hands_back = False
        self._resources = contextlib.ExitStack()
        self._in_charge = contextlib.ExitStack()

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
        if self._model is not None:
            return self._model
        if self._saved is not None:
            raise ConfigError(
                "The trained state is here, and the model is not on a device yet.",
                hint="Call validate or test of a Trainer that stays in this process, such as Trainer(devices=1).",
            )
        raise ConfigError("The model does not exist yet.", hint="Call fit, validate or test of a Trainer first.")

    def setup(self, stage: str) -> None:
        """Load the images and build the model on the device of the Trainer, once."""
        trainer = self.trainer
        if getattr(trainer, "datamodule", None) is not self._data:
            raise ConfigError(
                "The Trainer was not given the data of the module.",
                hint="Give it the same RaymineData: trainer.fit(RaymineModule(data), data).",
            )
        require_strategy(trainer.strategy)
        amp = amp_of(trainer)
        # A fit that ended with an error has called no `teardown`.
        self._in_charge.close()
        self._in_charge.enter_context(in_charge(trainer))
        if self._model is not None:
            self._require_same(self._model, amp, stage)
            return
        ranks = ranks_of(trainer)
        with remedies():
            self._model = self._build(trainer.strategy.root_device, amp, ranks)
            if stage == "fit":
                together(ranks, self._warm_up)
        if self._saved is not None:
            self._restore(self._saved)

    def _require_same(self, model: _Model, amp: Amp | None, stage: str) -> None:
        """`ConfigError` unless the present Trainer can use the model as it was built for an earlier one."""
        device, processes = self.trainer.strategy.root_device, self.trainer.world_size
        if model.state.device != device:
            raise ConfigError(f"The model is on {model.state.device}, and this Trainer uses {device}.")
        if stage != "fit":
            return
        anew = "Make a new RaymineModule. It can continue from a checkpoint: trainer.fit(module, data, ckpt_path=...)."
        if model.amp != amp:
            raise ConfigError(f"The model trains with amp {model.amp}, and this Trainer asks for {amp}.", hint=anew)
        if model.state.ranks.world != processes:
            told = f"{model.state.ranks.world} processes, and this Trainer has {processes}"
            raise ConfigError(f"The model is trained by {told}.", hint=anew)

    def _warm_up(self) -> None:
        with memory_errors(self.state.device):
            self.engine.warm_up()

    def teardown(self, stage: str) -> None:
        """Give the Trainer back its own precision and strategy."""
        self._in_charge.close()
        if stage == "fit" and self._model is not None and self._model.state.ranks.backend == "nccl":
            _drop_graphs(self._model.engine)
        self._hands_back = stage == "fit" and hands_back(self.trainer.strategy)

    def _build(self, device: torch.device, amp: Amp | None, ranks: Ranks) -> _Model:
        # A module may be fitted, validated and tested again, so the images stay open as long as it lives.
        weakref.finalize(self, self._resources.close)
        prepared, _ = together(ranks, lambda: prepare(self._request(device, amp), ranks=ranks), facts_of)
        return together(ranks, lambda: self._ready_model(prepared, amp, ranks))[0]

    def _request(self, device: torch.device, amp: Amp | None) -> TrainRequest:
        data, overrides = self._data, self._overrides
        if amp is not None:
            own = overrides.get("amp", amp)
            if own != amp:
                raise ConfigError(
                    f"The Trainer's precision {self.trainer.precision} stands for amp {amp}, and the module overrides "
                    f"amp with {own}.",
                    hint="Leave out one of the two.",
                )
            overrides = {**overrides, "amp": amp}
        return TrainRequest(
            data.scene,
            recipe=self._recipe,
            seed=self._seed,
            device=str(device),
            downscale=data.downscale,
            hold_out=data.hold_out,
            leave_out=data.leave_out,
            overrides=overrides,
            evaluate_views=data.views,
        )

    def _ready_model(self, prepared: Prepared, amp: Amp | None, ranks: Ranks) -> _Model:
        data, scene, config, device = self._data, prepared.scene, prepared.config.train, prepared.device
        budget = prepared.bank_budget
        require_memory(config, scene.bounds, device, ranks.sharing(device))
        with memory_errors(device):
            frames, _ = split_training(scene, data.hold_out, data.leave_out)
            depths = "depth" in targets_of(config.loss)
            opened = self._resources.enter_context(open_data(scene, frames, device, None, depths=depths, budget=budget))
            state = create_state(config, opened.train, seed=self._seed, device=device, ranks=ranks)
            engine = engine_for(state, opened.train)
        views = data.validation_frames(scene)
        if not views:
            return _Model(prepared, amp, state, engine, None)

        @cache
        def quick() -> QuickEvaluation:
            shown = self._resources.enter_context(open_data(scene, views, device, None, budget=budget)).train
            return QuickEvaluation(shown, scene.background or (0.0, 0.0, 0.0))

        if ranks.leads:
            quick()
        return _Model(prepared, amp, state, engine, lambda: quick().psnr(engine.renderer()))

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
        with remedies():
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
        # A Trainer with one process may validate what several have trained.
        ranks = self.state.ranks if self.trainer.world_size > 1 else SOLO
        score = math.nan
        if ranks.leads:
            # Lightning validates in inference mode. Tensors that are made and kept there could not be trained with.
            with torch.inference_mode(False), torch.no_grad():
                score = evaluate()
        if ranks.active:
            with remedies():
                score = ranks.gather_objects(score)[0]
        name = "held_out_psnr" if self._data.hold_out else "test_psnr"
        # Every process logs the same number: callbacks of each decide by it.
        self.log(name, score, prog_bar=True, batch_size=1, on_step=False, on_epoch=True, sync_dist=ranks.active)

    test_step = validation_step

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add a copy of the training state, its config and the digest of its scene, in the process that writes."""
        if self.trainer.is_global_zero:
            checkpoint[_KEY] = self._copied()

    def _copied(self) -> dict[str, Any]:
        model = self._ready
        return {
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

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Empty, but for what processes that end with a fit send to the one that called it: the training state."""
        found: dict[str, Any] = super().state_dict(*args, **kwargs)
        if self._hands_back and self.trainer.is_global_zero:
            found[_KEY] = self._copied()
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Take what `state_dict` has."""
        own = dict(state_dict)
        if _KEY in own:
            self.on_load_checkpoint({_KEY: own.pop(_KEY)})
        return super().load_state_dict(own, *args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        if self._model is not None:
            raise ConfigError(
                "A RaymineModule that a Trainer has set up cannot be copied, or sent to other processes.",
                hint="Make a new one. It can continue from a checkpoint: trainer.fit(module, data, ckpt_path=...).",
            )
        return dict(super().__getstate__())


def _drop_graphs(engine: Engine) -> None:
    """Let go of CUDA graphs, which are captured again when they are needed.

    Lightning closes NCCL when the program ends, and that waits for graphs that hold its kernels.
    """
    from raymine.engines.fused.engine import FusedEngine
    from raymine.engines.phased import PhasedEngine

    for each in engine.engines if isinstance(engine, PhasedEngine) else (engine,):
        if isinstance(each, FusedEngine):
            each.trainer.drop_graphs()

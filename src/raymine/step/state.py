"""The training state: everything that changes during training, so that it can be saved, restored and compared."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from raymine.contracts import Draws, FadesLevels, Field, Part, PreparesField, Renderer, Sampler, Scalars
from raymine.errors import CheckpointError, ConfigError, option
from raymine.mining import Miner
from raymine.pixels import PixelSampler
from raymine.render import VolumeRenderer
from raymine.step.average import Average
from raymine.step.config import TrainConfig
from raymine.step.data import TrainData
from raymine.step.distributed.ranks import SOLO, Ranks
from raymine.step.exposure import Exposure
from raymine.step.optimiser import Optimiser
from raymine.step.parts import TensorsPart, part_of
from raymine.step.poses import PoseRefinement
from raymine.step.schedule import FadeConfig


class TrainState:
    """A model in training: named parts (field, sampler, miner, pixels, average, optimiser, ...) and a few counters.

    Random numbers are a function of (seed, step), so there is no generator state. `horizon` is the number of steps that
    the learning-rate schedule is planned for; the training loop sets it. `restore_count` counts the calls of `restore`,
    so that an engine with copies of these tensors notices that they changed. `ranks`: the processes that train it.
    `cameras` [I, 3, 4]: poses of the training images, for loss terms over parameters; a constant, which is not saved.
    """

    def __init__(
        self,
        config: TrainConfig,
        field: nn.Module,
        sampler: Sampler,
        pixels: PixelSampler,
        miner: Miner | None,
        seed: int,
        device: torch.device,
        poses: PoseRefinement | None = None,
        exposure: Exposure | None = None,
        ranks: Ranks = SOLO,
        cameras: Tensor | None = None,
    ) -> None:
        self.config = config
        self.module = field
        self.sampler = sampler
        self.pixels = pixels
        self.miner = miner
        self.seed = seed
        self.device = device
        self.ranks = ranks
        self.poses, self.exposure, self.cameras = poses, exposure, cameras
        trained = {"field": part_of(field), "sampler": part_of(sampler)}
        trained |= {
            name: part_of(part) for name, part in (("poses", poses), ("exposure", exposure)) if part is not None
        }
        self.optimiser = Optimiser(config.optimiser, trained)
        share = config.optimiser.average
        self.average = Average(field, share) if share > 0 else None
        self.parts: dict[str, Part] = {
            **trained,
            "adam": self.optimiser,
            **({"average": TensorsPart(self.average)} if self.average is not None else {}),
            **({"miner": TensorsPart(miner)} if miner is not None else {}),
            "pixels": TensorsPart(pixels),
        }
        self.restore_count = 0
        self._constants: set[str] = set()
        # What is not finite from the start is a constant of a user's module, such as a mask, unless it is trained.
        self._constants = set(self.non_finite()) - set(self.optimiser.parameters)
        self.step = 0
        self.horizon = config.default_steps
        self.rays = max(config.batch.min_rays, ranks.world)

    @property
    def field(self) -> Field:
        """The field that is trained."""
        return cast("Field", self.module)

    @property
    def shown(self) -> Field:
        """The field that is evaluated and rendered: the moving average if there is one, else the trained field."""
        shown = self.field if self.average is None else self.average.field
        self._fade(shown)
        return shown

    @property
    def fading(self) -> bool:
        """Whether the field is used with a part of its levels in the current step."""
        schedule = self._schedule
        return schedule is not None and schedule.open_share(self.step, self.horizon) < 1

    @property
    def refining(self) -> bool:
        """Whether poses are refined, rather than given or no longer refined."""
        return self.poses is not None and self.poses.refining

    def end_refinement(self) -> None:
        """End the refinement of poses if it is due before the next step (`PoseConfig.until`)."""
        if self.poses is not None:
            self.poses.end_if_due(self.step, self.horizon)

    @property
    def _schedule(self) -> PoseRefinement | FadeConfig | None:
        """What fades levels in: the refinement of poses, or `TrainConfig.fade`; None if all are open."""
        return self.config.fade if self.poses is None else self.poses

    def fade_levels(self) -> None:
        """Open the levels of the trained field that the current step calls for. Without a schedule, all are open."""
        self._fade(self.field)

    def _fade(self, field: Field) -> None:
        schedule = self._schedule
        if schedule is not None and isinstance(field, FadesLevels):
            field.fade_levels(schedule.open_share(self.step, self.horizon))

    def prepare_field(self, step: int) -> None:
        """Let the field prepare step `step`; if its rows move, so do their moments, and the average begins anew."""
        if not isinstance(self.module, PreparesField):
            return
        moved = self.module.before_step(Draws(self.seed, step, self.device, horizon=self.horizon))
        if moved is None:
            return
        for name, source in moved.items():
            self.optimiser.move_rows(f"field.{name}", source)
        if self.average is not None:
            self.average.restart(self.module)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor to save, by `part.name`. They share memory with the state."""
        return {f"{part}.{name}": value for part, own in self.parts.items() for name, value in own.tensors().items()}

    def non_finite(self) -> list[str]:
        """The names of saved tensors that have become NaN or infinite somewhere: [] for a sound state."""
        return [
            name
            for name, value in self.tensors().items()
            if value.is_floating_point() and name not in self._constants and not torch.isfinite(value).all()
        ]

    def scalars(self) -> Scalars:
        """Every number to save, by name or `part.name`."""
        own: Scalars = {"step": self.step, "horizon": self.horizon, "rays": self.rays, "seed": self.seed}
        return own | {f"{part}.{name}": v for part, held in self.parts.items() for name, v in held.scalars().items()}

    def restore(self, tensors: dict[str, Tensor], scalars: Scalars) -> None:
        """Copy a saved state into this one. If names, shapes or dtypes differ: `CheckpointError`, and no change."""
        own = self.tensors()
        missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
        if missing or extra:
            raise CheckpointError(f"the checkpoint belongs to another model: missing {missing}, unknown {extra}.")
        for name, value in own.items():
            if value.shape != tensors[name].shape or value.dtype != tensors[name].dtype:
                raise CheckpointError(
                    f"the checkpoint belongs to another model: `{name}` must be {value.dtype} {list(value.shape)}, "
                    f"got {tensors[name].dtype} {list(tensors[name].shape)}."
                )
        lacking = sorted(self.scalars().keys() - scalars.keys())
        if lacking:
            raise CheckpointError(f"the checkpoint lacks {', '.join(lacking)}.")
        for name in self.scalars():
            whole = name in ("step", "horizon", "rays", "seed", "adam.updates", "poses.ended")
            if not isinstance(scalars[name], int if whole else int | float) or (scalars[name] < 0 and whole):
                wanted = "a whole number from 0 up" if whole else "a number"
                raise CheckpointError(f"the checkpoint's `{name}` must be {wanted}, got {scalars[name]!r}.")
        if scalars["seed"] != self.seed:
            raise CheckpointError(f"the checkpoint was trained with seed {scalars['seed']}, not {self.seed}.")
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(tensors[name])
        self.step, self.horizon = int(scalars["step"]), int(scalars["horizon"])
        # Every rank has a ray, also if fewer of them made the checkpoint.
        self.rays = max(int(scalars["rays"]), self.ranks.world)
        for name, part in self.parts.items():
            part.restored({key: scalars[f"{name}.{key}"] for key in part.scalars()})
        if self.average is not None:
            self.average.restored(self.parts["field"].scalars())
        self.restore_count += 1

    def renderer(self) -> Renderer:
        """A renderer of the evaluated field. It renders the field as it is when it renders."""
        return VolumeRenderer(self.shown, self.sampler, stop=self.config.mining.stop)


def create_state(
    config: TrainConfig,
    data: TrainData,
    *,
    seed: int,
    device: torch.device,
    pixels: PixelSampler | None = None,
    ranks: Ranks = SOLO,
) -> TrainState:
    """A new state, with initial parameters that are a function of the seed. This allocates the model.

    pixels: the pixel sampler, if it has been made already. A new one of `data` if None. ranks: the processes that train
    the state together.
    """
    field = config.field.build(data.bounds, seed, device)
    if not isinstance(field, nn.Module):
        raise ConfigError(
            f"{type(config.field).__name__}.build must give a torch.nn.Module, got {type(field).__name__}."
        )
    if config.fade is not None and not isinstance(field, FadesLevels):
        raise ConfigError(
            f"{option('coarse_to_fine')}: {type(field).__name__} has no levels that could fade in.",
            hint="Train without it, or give the field a method `fade_levels` (contracts.FadesLevels).",
        )
    sampler = config.sampler.build(data.bounds, seed, device)
    hard = config.mining.policy == "hard"
    # A run that is opened to be rendered has no images.
    miner = Miner(config.mining.hard, images=max(1, len(data.rig)), device=device) if hard else None
    if pixels is None:
        pixels = PixelSampler(config.pixels, data.images)
    images, lr, poses, exposure = len(data.rig), config.optimiser.lr, None, None
    if config.poses is not None:
        poses = PoseRefinement(config.poses, images, data.bounds, lr, device)
    if config.exposure is not None:
        exposure = Exposure(config.exposure, images, lr, device)
    made = config, field, sampler, pixels, miner, seed, device, poses, exposure, ranks
    return TrainState(*made, cameras=data.rig.poses.contiguous())


def twin_of(state: TrainState, data: TrainData) -> TrainState:
    """A new, untrained state of the same config, to be trained and thrown away. `state` does not change with it.

    This process trains it on its own, whatever the ranks of `state` are.
    """
    # A sampler that does not learn never changes, and its edge maps take time to compute.
    pixels = None if state.pixels.learns else state.pixels
    return create_state(state.config, data, seed=0, device=state.device, pixels=pixels)

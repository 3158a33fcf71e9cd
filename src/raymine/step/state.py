"""Everything that changes during training, in one place that can be saved, loaded and compared."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from raymine.contracts import Renderer
from raymine.errors import CheckpointError
from raymine.fields import HashField
from raymine.mining import Miner
from raymine.pixels import PixelSampler
from raymine.render import VolumeRenderer
from raymine.samplers import OccupancySampler
from raymine.step.average import Average
from raymine.step.config import TrainConfig
from raymine.step.data import TrainData
from raymine.step.optimiser import Optimiser

Scalars: TypeAlias = "dict[str, int | float | bool]"


class TrainState:
    """Field and its average, optimiser, occupancy grid, miner, pixel sampler, step, ray budget, schedule horizon.

    Randomness is a function of (seed, step), so there is no generator here. `horizon` is the number of steps that the
    learning-rate schedule is laid out for; the loop owns it. `restored` counts calls of `restore`, for those who keep
    copies of what is here.
    """

    def __init__(
        self,
        config: TrainConfig,
        field: HashField,
        sampler: OccupancySampler,
        pixels: PixelSampler,
        miner: Miner | None,
        seed: int,
    ) -> None:
        self.config = config
        self.field = field
        self.sampler = sampler
        self.pixels = pixels
        self.miner = miner
        self.seed = seed
        self.optimiser = Optimiser(config.optimiser, dict(field.named_parameters()))
        share = config.optimiser.average
        self.average = Average(field, share) if share > 0 else None
        self.restored = 0
        self.step = 0
        self.horizon = 20_000
        self.rays = config.batch.min_rays

    @property
    def device(self) -> torch.device:
        return self.sampler.values.device

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor to save, by a stable name. They alias the live state."""
        out = {f"field.{name}": value.detach() for name, value in self.field.named_parameters()}
        out |= {f"adam.first.{name}": value for name, value in self.optimiser.first.items()}
        out |= {f"adam.second.{name}": value for name, value in self.optimiser.second.items()}
        if self.average is not None:
            out |= {f"average.{name}": value for name, value in self.average.tensors().items()}
        out["occupancy.values"] = self.sampler.values
        if self.miner is not None:
            out |= {f"miner.{name}": value for name, value in self.miner.tensors().items()}
        out |= {f"pixels.{name}": value for name, value in self.pixels.tensors().items()}
        return out

    def scalars(self) -> Scalars:
        """Every number to save."""
        return {
            "step": self.step,
            "horizon": self.horizon,
            "rays": self.rays,
            "seed": self.seed,
            "adam.updates": self.optimiser.updates,
            "occupancy.swept": self.sampler.swept,
        }

    def restore(self, tensors: dict[str, Tensor], scalars: Scalars) -> None:
        """Become the saved state exactly. Nothing is changed unless everything fits."""
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
        if scalars["seed"] != self.seed:
            raise CheckpointError(f"the checkpoint was trained with seed {scalars['seed']}, not {self.seed}.")
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(tensors[name])
        self.step, self.horizon, self.rays = int(scalars["step"]), int(scalars["horizon"]), int(scalars["rays"])
        self.optimiser.updates = int(scalars["adam.updates"])
        self.sampler.swept = bool(scalars["occupancy.swept"])
        self.sampler.refresh()
        self.optimiser.clear()
        self.restored += 1

    def renderer(self) -> Renderer:
        """A renderer of what has been learnt by the time it is called: the average of the field where one is kept."""
        shown = self.field if self.average is None else self.average.field
        return VolumeRenderer(shown, self.sampler, stop=self.config.mining.stop)


def create_state(config: TrainConfig, data: TrainData, *, seed: int, device: torch.device) -> TrainState:
    """A fresh state: parameters are a function of the seed."""
    field = HashField(config.field, data.bounds, seed).to(device)
    sampler = OccupancySampler(config.occupancy, data.bounds, device)
    hard = config.mining.policy == "hard"
    # A run opened for looking has no images.
    miner = Miner(config.mining.hard, images=max(1, len(data.rig)), device=device) if hard else None
    return TrainState(config, field, sampler, PixelSampler(config.pixels, data.images), miner, seed)

"""Everything that defines the training of a model, as one frozen value."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, get_args

from raymine.errors import ConfigError
from raymine.fields import HashFieldConfig
from raymine.losses import LossConfig
from raymine.mining import MiningConfig
from raymine.pixels import PixelConfig
from raymine.samplers import OccupancyConfig
from raymine.step.optimiser import OptimiserConfig

Amp = Literal["auto", "fp32", "fp16", "bf16"]


@dataclass(frozen=True)
class BatchConfig:
    """How large a step is: the ray count adapts, in min_rays .. max_rays, so that about `samples` are marched."""

    samples: int = 1 << 18
    min_rays: int = 16
    max_rays: int = 1 << 16

    def __post_init__(self) -> None:
        if self.samples < 1 or not 1 <= self.min_rays <= self.max_rays:
            raise ConfigError(
                "a batch needs samples >= 1 and 1 <= min_rays <= max_rays; "
                f"got {self.samples}, {self.min_rays} and {self.max_rays}."
            )


@dataclass(frozen=True)
class TrainConfig:
    """Composed once by a recipe; each part is checked by the class that it configures.

    deterministic: runs on CUDA repeat bit for bit, at a cost (docs/kernels/train.md); those on a CPU always do.
    amp: the type that the networks multiply in; parameters, moments, the encoding and rendering are always float32.
        `auto`: float16 in the fused step, float32 in the plain one.
    checkpoint: the field is evaluated in pieces of at most this many samples, and the backward pass computes their
        activations again instead of finding them in memory; 0: all samples at once, and activations are kept.
    max_useful_steps: a run that is limited by time ends after this many steps: further steps overfit the training
        views. 0: no such number is known.
    """

    field: HashFieldConfig = dataclasses.field(default_factory=HashFieldConfig)
    occupancy: OccupancyConfig = dataclasses.field(default_factory=OccupancyConfig)
    batch: BatchConfig = dataclasses.field(default_factory=BatchConfig)
    optimiser: OptimiserConfig = dataclasses.field(default_factory=OptimiserConfig)
    loss: LossConfig = dataclasses.field(default_factory=LossConfig)
    mining: MiningConfig = dataclasses.field(default_factory=MiningConfig)
    pixels: PixelConfig = dataclasses.field(default_factory=PixelConfig)
    random_background: bool = True
    deterministic: bool = False
    amp: Amp = "auto"
    checkpoint: int = 0
    max_useful_steps: int = 0

    def __post_init__(self) -> None:
        if self.amp not in get_args(Amp):
            raise ConfigError(f"`amp` must be one of {', '.join(get_args(Amp))}; got {self.amp!r}.")
        if self.checkpoint < 0:
            raise ConfigError(f"`checkpoint` must be 0 (off) or a number of samples, got {self.checkpoint}.")
        if self.max_useful_steps < 0:
            raise ConfigError(
                f"`max_useful_steps` must be 0 (no limit) or a number of steps, got {self.max_useful_steps}."
            )

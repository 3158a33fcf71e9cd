"""Everything that defines the training of a model, as one frozen value."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from raymine.errors import ConfigError
from raymine.fields import HashFieldConfig
from raymine.losses import LossConfig
from raymine.mining import MiningConfig
from raymine.pixels import PixelConfig
from raymine.samplers import OccupancyConfig
from raymine.step.optimiser import OptimiserConfig


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

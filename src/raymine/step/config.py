"""The configuration of a model and its training, as one frozen dataclass."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, get_args

from raymine.contracts import FieldConfig, SamplerConfig, Term
from raymine.errors import ConfigError, option
from raymine.fields import HashFieldConfig
from raymine.losses import ColourLoss
from raymine.mining import MiningConfig
from raymine.pixels import PixelConfig
from raymine.samplers import OccupancyConfig
from raymine.step.exposure import ExposureConfig
from raymine.step.optimiser import OptimiserConfig
from raymine.step.poses import PoseConfig
from raymine.step.schedule import FadeConfig, ProgressiveConfig

Amp = Literal["auto", "fp32", "fp16", "bf16"]
Background = Literal["random", "scene"]
EngineWish = Literal["auto", "fused", "captured", "plain"]
MOST_LEVELS = 12
"""Nested boxes: the largest is 2,048 times the inner one."""


@dataclass(frozen=True)
class BatchConfig:
    """The size of a step: the ray count adapts, in min_rays .. max_rays, so that about `samples` samples are placed."""

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
    """A model and its training. A recipe builds it; each nested config checks its own values.

    field: config of the field that is trained; any frozen dataclass with a `build` (`contracts.FieldConfig`).
    sampler: config of the sampler, which places samples along rays (`contracts.SamplerConfig`).
    loss: the terms whose sum is minimised (`contracts.Term`).
    background: the colour behind transparent pixels in training. `random`: a random colour per ray, so that the field
        cannot model the background as part of the scene. `scene`: the background colour of the scene.
    engine: `auto` uses the fused kernels if they support this model, else plain torch in a CUDA graph where shapes are
        fixed. `fused` does so where several processes train the run too, which `auto` leaves to plain torch.
        `captured` never uses fused kernels; `plain` uses no graph either.
    deterministic: make runs on CUDA repeat bit for bit, at a cost (docs/kernels/train.md); runs on a CPU always do.
    amp: the dtype of the networks' matrix products. Parameters, moments, the encoding and rendering are always float32.
        `auto`: float16 in the fused step, float32 in the plain one.
    recompute_samples: evaluate the field in pieces of at most this many samples, and recompute their activations in the
        backward pass instead of storing them. 0: evaluate all samples at once and store activations.
    levels: nested boxes, from the inner one on, in which an unbounded scene is sampled; 0, or fewer than the scene has:
        those of the scene.
    near_fade: gradients of samples nearer to their camera than this distance, in world units, are multiplied by the
        square of distance / near_fade, so that no fog forms in front of cameras. 0: no such factor.
    max_useful_steps: a time-limited run ends after this many steps, because further steps overfit the training views.
        0: no such limit.
    default_steps: the length of a run for which the user gives no limit.
    poses: refine the poses of the training images along with the field (docs/poses.md); None keeps them.
    exposure: fit a colour correction for each training image; None for none.
    fade: open the levels of the field from coarse to fine; None for all from the start. Refined poses do so anyway.
    progressive: train on smaller images first; None for images of the full size from the start.
    image_memory: bytes of images that the device holds at a time, where it draws the rays; None holds all of them
        (docs/memory.md).
    """

    field: FieldConfig = dataclasses.field(default_factory=HashFieldConfig)
    sampler: SamplerConfig = dataclasses.field(default_factory=OccupancyConfig)
    loss: tuple[Term, ...] = (ColourLoss(),)
    batch: BatchConfig = dataclasses.field(default_factory=BatchConfig)
    optimiser: OptimiserConfig = dataclasses.field(default_factory=OptimiserConfig)
    mining: MiningConfig = dataclasses.field(default_factory=MiningConfig)
    pixels: PixelConfig = dataclasses.field(default_factory=PixelConfig)
    background: Background = "random"
    engine: EngineWish = "auto"
    deterministic: bool = False
    amp: Amp = "auto"
    recompute_samples: int = 0
    levels: int = 0
    near_fade: float = 0.0
    max_useful_steps: int = 0
    default_steps: int = 20_000
    # Left out of config.json where they are None, so that files of runs without them stay as they were.
    poses: PoseConfig | None = dataclasses.field(default=None, metadata={"omit_none": True})
    exposure: ExposureConfig | None = dataclasses.field(default=None, metadata={"omit_none": True})
    fade: FadeConfig | None = dataclasses.field(default=None, metadata={"omit_none": True})
    progressive: ProgressiveConfig | None = dataclasses.field(default=None, metadata={"omit_none": True})
    image_memory: int | None = dataclasses.field(default=None, metadata={"omit_none": True})

    def __post_init__(self) -> None:
        for name, value, known in (
            ("background", self.background, get_args(Background)),
            ("engine", self.engine, get_args(EngineWish)),
            ("amp", self.amp, get_args(Amp)),
        ):
            if value not in known:
                raise ConfigError(f"`{name}` must be one of {', '.join(known)}; got {value!r}.")
        if not any(term.reads != "parameters" for term in self.loss):
            raise ConfigError("`loss` must have at least one term that reads rays, samples or rounds.")
        if self.recompute_samples < 0:
            raise ConfigError(
                f"{option('recompute_samples')} must be 0 (off) or a number of samples, got {self.recompute_samples}."
            )
        if not 0 <= self.levels <= MOST_LEVELS:
            raise ConfigError(f"`levels` must be 0 (those of the scene) to {MOST_LEVELS}, got {self.levels}.")
        if not 0 <= self.near_fade < math.inf:
            raise ConfigError(f"`near_fade` must be 0 (off) or a distance, got {self.near_fade}.")
        if self.max_useful_steps < 0:
            raise ConfigError(
                f"`max_useful_steps` must be 0 (no limit) or a number of steps, got {self.max_useful_steps}."
            )
        if self.image_memory is not None and self.image_memory < 1:
            raise ConfigError(f"`image_memory` must be a number of bytes, got {self.image_memory}.")
        if self.default_steps < 1:
            raise ConfigError(f"`default_steps` must be at least 1, got {self.default_steps}.")

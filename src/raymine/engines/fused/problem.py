"""Whether the fused engine supports a model, and if not, why. This module does not import Triton."""

from __future__ import annotations

from raymine.errors import ConfigError
from raymine.fields import HashFieldConfig
from raymine.kernels.dispatch import triton_problem
from raymine.losses import ColourLoss, DistortionLoss, judged_loss
from raymine.samplers import OccupancyConfig
from raymine.step import TrainConfig


class NoRoomError(ConfigError):
    """The GPU has too little shared memory for every variant of the kernels of a model."""


def problem_with(config: TrainConfig, device: str, *, training: bool) -> str:
    """Why the fused kernels cannot be used, or an empty string.

    device: "cuda" or another device type. training: whether to train, which supports fewer models than rendering.
    """
    if device != "cuda":
        return f"the fused step runs on CUDA, not on {device}"
    return triton_problem() or model_problem(config, training=training)


def model_problem(config: TrainConfig, *, training: bool) -> str:
    """As `problem_with`, on a device that runs the kernels."""
    field = config.field
    if type(field) is not HashFieldConfig:
        return f"there are fused kernels for the hash-grid field, not for {type(field).__name__}"
    if type(config.sampler) is not OccupancyConfig:
        return f"there are fused kernels for the occupancy grid, not for {type(config.sampler).__name__}"
    if field.width > 128 or field.geometry > 64 or field.colour_layers > 3:
        return "the fused step takes networks up to 128 wide, 64 numbers for colour and 3 colour layers"
    return _training_problem(config) if training else ""


def _training_problem(config: TrainConfig) -> str:
    if config.poses is not None:
        return "the fused kernels have no gradients for poses, which are refined"
    if config.exposure is not None:
        return "the fused kernels know no exposure of images"
    if config.engine not in ("auto", "fused"):
        return f"the {config.engine} step was asked for"
    if judged_loss(config.loss) is None or any(term.reads == "parameters" for term in config.loss):
        others = [type(term).__name__ for term in config.loss if not isinstance(term, ColourLoss | DistortionLoss)]
        return f"the fused step minimises one colour loss, and the loss has {', '.join(others) or 'several'}"
    if config.optimiser.beta1 == 0:
        return "the fused step updates networks with momentum, and optimiser.beta1 is 0"
    if config.pixels.follows_error:
        return f"the fused step draws pixels evenly or by edges, not by {config.pixels.policy}"
    if config.amp not in ("auto", "fp16"):
        return f"the fused step computes in float16, and amp is {config.amp}"
    if config.recompute_samples:
        return "the fused step stores no activations, so there is nothing to recompute"
    return ""

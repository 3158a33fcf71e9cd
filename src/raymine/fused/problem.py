"""Whether the fast path can take a model, and why not where it cannot. Imports no Triton, so anyone may ask."""

from __future__ import annotations

from raymine.errors import ConfigError
from raymine.kernels.dispatch import triton_problem
from raymine.step import TrainConfig


class NoRoomError(ConfigError):
    """A GPU has too little shared memory for the kernels of a model, whatever they do without."""


def problem_with(config: TrainConfig, device: str, *, training: bool) -> str:
    """Why the fused kernels cannot be used, or an empty string; looking asks for less than training does."""
    if device != "cuda":
        return f"the fused step runs on CUDA, not on {device}"
    problem = triton_problem()
    if problem:
        return problem
    field = config.field
    if field.width > 128 or field.geometry > 64 or field.colour_layers > 3:
        return "the fused step takes networks up to 128 wide, 64 numbers for colour and 3 colour layers"
    if not training:
        return ""
    if config.optimiser.beta1 == 0:
        return "the fused step updates networks with momentum, and optimiser.beta1 is 0"
    if config.pixels.follows_error:
        return f"the fused step draws pixels evenly or by edges, not by {config.pixels.policy}"
    if config.amp not in ("auto", "fp16"):
        return f"the fused step computes in float16, and amp is {config.amp}"
    if config.checkpoint:
        return "the fused step stores no activations, so there is nothing to checkpoint"
    return ""

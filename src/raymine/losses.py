"""Photometric losses over a batch of rays. Each is a mean over rays and channels, weighted by the pixel mask."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from raymine.contracts import LossReport
from raymine.errors import ConfigError


@dataclass(frozen=True)
class LossConfig:
    """`huber` is quadratic up to `delta` and linear beyond it, scaled so that its curvature is that of `l2` halved."""

    kind: Literal["huber", "l2"] = "huber"
    delta: float = 0.1

    def __post_init__(self) -> None:
        if self.kind not in ("huber", "l2"):
            raise ConfigError(f"loss `kind` must be huber or l2, got {self.kind!r}.")
        if self.delta <= 0:
            raise ConfigError(f"loss `delta` must be positive, got {self.delta}.")

    @property
    def threshold(self) -> float:
        """Where the loss turns linear; infinite for `l2`."""
        return self.delta if self.kind == "huber" else math.inf


def colour_loss(config: LossConfig, predicted: Tensor, target: Tensor, weight: Tensor) -> LossReport:
    """predicted, target [R, 3]; weight [R] (0 where a pixel is masked out). Differentiable in `predicted`."""
    error = predicted - target
    share = weight[:, None] / (3.0 * weight.sum().clamp_min(1.0))
    squared = error * error
    if config.kind == "l2":
        each = squared
    else:
        size = error.abs()
        each = torch.where(size <= config.delta, 0.5 * squared, config.delta * (size - 0.5 * config.delta))
    squared = squared.detach()
    return LossReport((each * share).sum(), (squared * share).sum(), squared.mean(1))

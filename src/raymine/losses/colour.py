"""The photometric loss of a batch of rays: a mean over rays and channels, weighted by the pixel mask."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from raymine.contracts import LossView, Reads
from raymine.errors import ConfigError, require_finite
from raymine.kernels.threads import total


@dataclass(frozen=True)
class ColourLoss:
    """The error of rendered colours: `l2` is the squared error, `huber` half of it up to `delta` and linear beyond."""

    reads: ClassVar[Reads] = "rays"
    shared: ClassVar[bool] = True

    kind: Literal["huber", "l2"] = "huber"
    delta: float = 0.1

    def __post_init__(self) -> None:
        require_finite(self)
        if self.kind not in ("huber", "l2"):
            raise ConfigError(f"loss `kind` must be huber or l2, got {self.kind!r}.")
        if not self.delta > 0:
            raise ConfigError(f"loss `delta` must be positive, got {self.delta}.")

    @property
    def threshold(self) -> float:
        """The absolute error above which the loss is linear; infinite for `l2`."""
        return self.delta if self.kind == "huber" else math.inf

    def __call__(self, view: LossView) -> Tensor:
        return self.of(view.rendered.colour, view.wanted.colour, view.wanted.weight, view.weight_sum)

    def of(self, predicted: Tensor, target: Tensor, weight: Tensor, weight_sum: Tensor | None = None) -> Tensor:
        """predicted, target [R, 3]; weight [R] (0 where a pixel is masked out) -> []. Differentiable in `predicted`.

        weight_sum: what the mean divides by; None: the sum of `weight`, at least 1.
        """
        error = predicted - target
        squared = error * error
        if self.kind == "l2":
            each = squared
        else:
            size = error.abs()
            each = torch.where(size <= self.delta, 0.5 * squared, self.delta * (size - 0.5 * self.delta))
        return total(each * channel_share(weight, weight_sum))


def channel_share(weight: Tensor, weight_sum: Tensor | None = None) -> Tensor:
    """[R, 1]: the weight of one channel of each ray in the mean over rays and channels, given ray weights [R].

    weight_sum: what the mean divides by; None: the sum of `weight`, at least 1.
    """
    return weight[:, None] / (3.0 * (total(weight).clamp_min(1.0) if weight_sum is None else weight_sum))


def squared_errors(
    predicted: Tensor, target: Tensor, weight: Tensor, weight_sum: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mean squared error [] over rays and channels, weighted by [R], and that of each ray [R], unweighted. No graph.

    weight_sum: as in `channel_share`.
    """
    squared = (predicted - target).detach().square()
    return total(squared * channel_share(weight, weight_sum)), squared.mean(1)

"""Supervision by depth maps: the weight of a ray should lie at the distance that was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from raymine.contracts import LossView, Reads
from raymine.errors import ConfigError, require_finite
from raymine.kernels.threads import total


@dataclass(frozen=True)
class DepthLoss:
    """`weight` times a mean over the rays with a known distance z, with rendering weights w_i at distances t_i, of

        sum_i w_i (1 - exp(-((t_i - z) / (`spread` z))^2)) + (1 - opacity)^2

    The first part moves the weight to z, rather than its mean, so that fog on both sides of z costs. It is 1 for weight
    that lies far from z. The second part keeps the weight from vanishing: where a distance was measured, there is a
    surface. `spread` is the width of the valley around z, as a share of z.
    """

    reads: ClassVar[Reads] = "samples"
    shared: ClassVar[bool] = True
    targets: ClassVar[tuple[str, ...]] = ("depth",)

    weight: float = 0.01
    spread: float = 0.05

    def __post_init__(self) -> None:
        require_finite(self)
        if not self.weight > 0:
            raise ConfigError(f"the depth loss needs a positive `weight`, got {self.weight}.")
        if not self.spread > 0:
            raise ConfigError(f"the depth loss needs a positive `spread`, got {self.spread}.")

    def __call__(self, view: LossView) -> Tensor:
        depth = view.targets.depth
        if depth is None:
            raise ConfigError("the depth loss needs the depth of each pixel, and this batch has none.")
        samples = view.samples
        known = view.wanted.weight * (depth > 0)
        wanted = depth.clamp_min(1e-6)[samples.ray_id]
        off = ((samples.t_start + samples.t_end) * 0.5 / wanted - 1) / self.spread
        away = -torch.expm1(-off.square()) * known[samples.ray_id]
        open_ = (1 - view.rendered.opacity).square() * known
        measured = view.share.over_ranks(total(known)).clamp_min(1.0)
        return self.weight * (total(view.rendered.weights * away) + total(open_)) / measured

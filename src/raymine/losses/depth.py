"""Supervision by depth maps: the weight of a ray should lie at the distance that was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raymine.contracts import LossView, Reads
from raymine.errors import ConfigError, require_finite
from raymine.kernels.judge.op import curve
from raymine.kernels.threads import total


@dataclass(frozen=True)
class DepthLoss:
    """`weight` times a mean over the rays with a known distance z, with rendering weights w_i at distances t_i, of

        sum_i w_i (c(t_i) - c(z))^2 + (1 - opacity)^2

    c(t) = t / (1 + t) makes all of space 0..1, where 1 is the distance of the subject in a normalised scene. The first
    part moves the weight to z, rather than its mean, so that fog on both sides of z costs. The second one keeps it
    from vanishing: where a distance was measured, there is a surface.
    """

    reads: ClassVar[Reads] = "samples"
    targets: ClassVar[tuple[str, ...]] = ("depth",)

    weight: float = 0.1

    def __post_init__(self) -> None:
        require_finite(self)
        if not self.weight > 0:
            raise ConfigError(f"the depth loss needs a positive `weight`, got {self.weight}.")

    def __call__(self, view: LossView) -> Tensor:
        depth = view.targets.depth
        if depth is None:
            raise ConfigError("the depth loss needs the depth of each pixel, and this batch has none.")
        samples = view.samples
        known = view.wanted.weight * (depth > 0)
        middle = curve((samples.t_start + samples.t_end) * 0.5)
        away = (middle - curve(depth)[samples.ray_id]).square() * known[samples.ray_id]
        open_ = (1 - view.rendered.opacity).square() * known
        return self.weight * (total(view.rendered.weights * away) + total(open_)) / total(known).clamp_min(1.0)

"""The distortion loss of mip-NeRF 360, which is small where the weight of a ray lies in one place: no floaters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raymine.contracts import LossView, Reads
from raymine.errors import ConfigError, require_finite
from raymine.kernels.judge.op import curve
from raymine.kernels.threads import total
from raymine.toolkit.losses import distortion_loss


@dataclass(frozen=True)
class DistortionLoss:
    """`weight` times the distortion of the weights along a ray, a mean over rays that counts them by their pixel mask.

    Distances are on the curve t / (1 + t), so that all of space becomes 0..1; 1 is the distance of the subject in a
    normalised scene. Beside a `ColourLoss` alone, `judge` has the gradient of both in closed form.
    """

    reads: ClassVar[Reads] = "samples"
    shared: ClassVar[bool] = True

    weight: float = 0.01

    def __post_init__(self) -> None:
        require_finite(self)
        if not self.weight > 0:
            raise ConfigError(f"the distortion loss needs a positive `weight`, got {self.weight}.")

    def __call__(self, view: LossView) -> Tensor:
        samples, wanted = view.samples, view.wanted
        ends = curve(samples.t_start), curve(samples.t_end)
        each = distortion_loss(view.rendered.weights, *ends, pack=samples.pack)
        return self.weight * total(each * wanted.weight) / view.weight_sum

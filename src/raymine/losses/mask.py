"""Supervision of opacity by the alpha channel of the images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raymine.contracts import LossView, Reads
from raymine.errors import ConfigError, require_finite
from raymine.kernels.threads import total


@dataclass(frozen=True)
class MaskLoss:
    """`weight` times the squared difference of a ray's opacity and the alpha of its pixel: a mean over rays."""

    reads: ClassVar[Reads] = "rays"
    shared: ClassVar[bool] = True
    targets: ClassVar[tuple[str, ...]] = ("alpha",)

    weight: float = 0.1

    def __post_init__(self) -> None:
        require_finite(self)
        if not self.weight > 0:
            raise ConfigError(f"the mask loss needs a positive `weight`, got {self.weight}.")

    def __call__(self, view: LossView) -> Tensor:
        if view.targets.alpha is None:
            raise ConfigError("the mask loss needs the alpha of each pixel, and this batch has none.")
        weight = view.wanted.weight
        error = (view.rendered.opacity - view.targets.alpha).square()
        return self.weight * total(error * weight) / view.weight_sum

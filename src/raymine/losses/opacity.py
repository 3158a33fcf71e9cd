"""A prior on the opacity of rays: it is small where a ray either hits something or passes through nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from raymine.contracts import LossView, Reads
from raymine.errors import ConfigError, require_finite
from raymine.kernels.threads import total

_MARGIN = 1e-4
"""Opacities are kept this far from 0 and 1, where the gradient of the entropy is infinite."""


@dataclass(frozen=True)
class OpacityLoss:
    """`weight` times the binary entropy of a ray's opacity o, - o log o - (1 - o) log(1 - o): a mean over rays.

    Half-transparent fog costs most, empty and opaque rays nothing. Rays count by their pixel mask.
    """

    reads: ClassVar[Reads] = "rays"
    shared: ClassVar[bool] = True

    weight: float = 0.01

    def __post_init__(self) -> None:
        require_finite(self)
        if not self.weight > 0:
            raise ConfigError(f"the opacity loss needs a positive `weight`, got {self.weight}.")

    def __call__(self, view: LossView) -> Tensor:
        opacity, weight = view.rendered.opacity.clamp(_MARGIN, 1 - _MARGIN), view.wanted.weight
        entropy = -opacity * opacity.log() - (1 - opacity) * (1 - opacity).log()
        return self.weight * total(entropy * weight) / view.weight_sum

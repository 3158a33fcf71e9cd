"""The photometric loss of a sampler's earlier rounds that have colours. It trains a coarse network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from raymine.contracts import LossView, Reads, Round
from raymine.errors import ConfigError, require_finite
from raymine.losses.colour import ColourLoss


@dataclass(frozen=True)
class CoarseColourLoss:
    """`weight` times the sum of the colour losses of the earlier rounds, each rendered over the batch's background."""

    reads: ClassVar[Reads] = "rounds"
    shared: ClassVar[bool] = True

    weight: float = 1.0
    colour: ColourLoss = field(default_factory=lambda: ColourLoss("l2"))

    def __post_init__(self) -> None:
        require_finite(self)
        if not self.weight > 0:
            raise ConfigError(f"the coarse loss needs a positive `weight`, got {self.weight}.")

    def __call__(self, view: LossView) -> Tensor:
        wanted = view.wanted
        shown = [_rendered(each, wanted.background) for each in view.rounds if each.colour is not None]
        losses = [self.colour.of(colour, wanted.colour, wanted.weight, view.weight_sum) for colour in shown]
        return self.weight * torch.stack(losses).sum() if losses else wanted.weight.new_zeros(())


def _rendered(found: Round, background: Tensor) -> Tensor:
    """The colour [R, 3] of a round, composited over a background [R, 3]."""
    assert found.colour is not None
    ray_id = found.samples.ray_id
    colour = torch.zeros_like(background).index_add(0, ray_id, found.weights[:, None] * found.colour)
    opacity = background.new_zeros(len(background)).index_add(0, ray_id, found.weights)
    return colour + (1 - opacity)[:, None] * background

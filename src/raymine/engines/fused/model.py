"""A hash-grid field as the fused kernels want it: float16 copies, the numbers of its levels, and its box."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from raymine.contracts import Field
from raymine.fields import HashField
from raymine.kernels.hash_grid.gpu import levels_of
from raymine.kernels.ngp_step.gpu import shape_of
from raymine.losses import ColourLoss
from raymine.samplers import OccupancySampler
from raymine.step import TrainState


class HalfModel:
    """`table` [entries, F] and `weights` [all layers] in float16; `arguments` and `constants` go to every kernel."""

    def __init__(self, field: HashField) -> None:
        config, device = field.config, field.table.device
        self.shape = shape_of(config.grid, config.width, config.geometry, config.colour_layers, field.unbounded)
        self.levels = levels_of(config.grid, device)
        self.table = torch.empty_like(field.table, dtype=torch.float16)
        self.weights = torch.empty(self.shape.weights, dtype=torch.float16, device=device)
        self.low = torch.cat((field.low, field.high)).float()
        self.refresh(field)

    @torch.no_grad()
    def refresh(self, field: HashField) -> None:
        """Take the parameters as they are now."""
        self.table.copy_(field.table)
        self.weights.copy_(torch.cat([layer.reshape(-1) for layer in layers_of(field)]))

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return self.table, self.weights, self.low, *self.levels

    @property
    def constants(self) -> dict[str, Any]:
        return self.shape._asdict()


def layers_of(field: HashField) -> list[Tensor]:
    """The layers in the order of the kernels."""
    return [*field.density_layers, *field.colour_layers]


def hash_field(field: Field) -> HashField:
    """`field`, which `problem_with` has found to be a hash-grid field."""
    assert isinstance(field, HashField)
    return field


def occupancy_of(state: TrainState) -> OccupancySampler:
    """The sampler of a state, which `problem_with` has found to be an occupancy grid."""
    assert isinstance(state.sampler, OccupancySampler)
    return state.sampler


def colour_loss(state: TrainState) -> ColourLoss:
    """The loss of a state, which `problem_with` has found to be a colour loss alone."""
    (loss,) = state.config.loss
    assert isinstance(loss, ColourLoss)
    return loss

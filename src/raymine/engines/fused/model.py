"""A hash-grid field in the form of the fused kernels: float16 copies of its parameters, its levels, and its box."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from raymine.contracts import Field
from raymine.fields import HashField
from raymine.kernels.hash_grid.gpu import levels_of
from raymine.kernels.ngp_step.gpu import shape_of
from raymine.losses import JudgedLoss, judged_loss
from raymine.samplers import OccupancySampler
from raymine.step import TrainState


class HalfModel:
    """table [entries, F], weights [all layers]: float16 copies. arguments, constants: passed to every fused kernel."""

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
        """Copy the current parameters of the field."""
        self.table.copy_(field.table)
        self.weights.copy_(torch.cat([layer.reshape(-1) for layer in layers_of(field)]))

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The model as kernel arguments: table, weights, low, and the arrays of `hash_grid.gpu.Levels`."""
        return self.table, self.weights, self.low, *self.levels

    @property
    def constants(self) -> dict[str, Any]:
        """The fields of `ngp_step.gpu.Shape` as compile-time constants of the kernels."""
        return self.shape._asdict()


def layers_of(field: HashField) -> list[Tensor]:
    """The layers in the order of the kernels."""
    return [*field.density_layers, *field.colour_layers]


def hash_field(field: Field) -> HashField:
    """`field` as a HashField; `problem_with` has checked that it is one."""
    assert isinstance(field, HashField)
    return field


def occupancy_of(state: TrainState) -> OccupancySampler:
    """The sampler of a state as an OccupancySampler; `problem_with` has checked that it is one."""
    assert isinstance(state.sampler, OccupancySampler)
    return state.sampler


def judged_loss_of(state: TrainState) -> JudgedLoss:
    """The loss of a state as `judge` takes it; `problem_with` has checked that it can."""
    found = judged_loss(state.config.loss)
    assert found is not None
    return found

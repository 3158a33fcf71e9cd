"""Finds samples at the kinks of hidden units, where two correct implementations may give different gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.kernels.hash_grid import reference as hash_grid
from raymine.kernels.ngp_step.inputs import harmonics, to_unit_cube
from raymine.kernels.ngp_step.op import Network


def clear_of_kinks(network: Network, positions: Tensor, directions: Tensor, within: float) -> Tensor:
    """[n] bool: samples whose hidden pre-activations all exceed `within` times the RMS of their layer. Closer to 0,
    rounding may switch a unit on or off."""
    table, spec, density, colour, box = network
    x = hash_grid.encode(to_unit_cube(positions, box).clamp(0, 1), table, spec)
    clear = torch.ones(len(x), dtype=torch.bool, device=x.device)

    def through(x: Tensor, weight: Tensor) -> Tensor:
        x = x @ weight
        clear.logical_and_((x.abs() > within * x.square().mean().sqrt()).all(-1))
        return x.relu()

    x = torch.cat((through(x, density[0]) @ density[1], harmonics(directions)), 1)
    for weight in colour[:-1]:
        x = through(x, weight)
    return clear

"""What the hash-grid, the dynamic and the plane field share: their place in space, their tables and networks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from raymine.contracts import Bounds
from raymine.errors import ConfigError
from raymine.fields.initial import xavier
from raymine.kernels.harmonics.op import harmonics
from raymine.kernels.hash_grid.op import GridSpec
from raymine.kernels.ngp_step.op import DEGREE, WIDTH, Box, to_unit_cube
from raymine.kernels.philox.op import Stream, uniform


class Placed(nn.Module):
    """A module that covers the bounds of a scene, all of space if they are unbounded."""

    low: Tensor
    high: Tensor

    def __init__(self, bounds: Bounds, device: torch.device | str) -> None:
        super().__init__()
        self.unbounded = bounds.unbounded
        self.register_buffer("low", torch.tensor(bounds.low, device=device), persistent=False)
        self.register_buffer("high", torch.tensor(bounds.high, device=device), persistent=False)

    def _box(self) -> Box:
        return Box(self.low, self.high, self.unbounded)

    def _unit(self, positions: Tensor) -> Tensor:
        """World positions [n, 3] -> [n, 3] in the unit cube."""
        return to_unit_cube(positions, self._box())


def check_networks(width: int, geometry: int, colour_layers: int, widest: int = 256) -> None:
    """`ConfigError` unless `network_layers` can make networks of these sizes."""
    if not 8 <= width <= widest:
        raise ConfigError(f"`width` must be in 8 .. {widest}, got {width}.")
    if not 1 <= geometry <= 64:
        raise ConfigError(f"`geometry` must be in 1 .. 64, got {geometry}.")
    if not 1 <= colour_layers <= 4:
        raise ConfigError(f"`colour_layers` must be in 1 .. 4, got {colour_layers}.")


def network_layers(
    inputs: int, width: int, geometry: int, colour_layers: int, seed: int, device: torch.device | str
) -> tuple[nn.ParameterList, nn.ParameterList]:
    """Weights without bias of a density network and of a colour network (`colour_network`).

    They use draws 1 .. colour_layers + 3 of `Stream.INITIAL`, one a layer.
    """
    colour = [(geometry + WIDTH, width)] + [(width, width)] * (colour_layers - 1) + [(width, 3)]
    shapes = [(inputs, width), (width, geometry), *colour]
    weights = [nn.Parameter(xavier(shape, seed, 1 + layer, device)) for layer, shape in enumerate(shapes)]
    return nn.ParameterList(weights[:2]), nn.ParameterList(weights[2:])


def hash_table(grid: GridSpec, seed: int, device: torch.device | str) -> nn.Parameter:
    """A table [entries, features] of numbers close to 0, from draw 0.

    It is drawn on the device: on the host, 12 million numbers take 0.6 s.
    """
    drawn = uniform(seed, 0, Stream.INITIAL, (grid.total_entries, grid.features), device)
    return nn.Parameter((drawn * 2 - 1) * 1e-4)


def colour_network(geometry: Tensor, directions: Tensor, layers: Iterable[Tensor]) -> Tensor:
    """Outputs of a density network [n, geometry] and unit directions [n, 3] -> colour pre-activations [n, 3].

    layers: weights without bias, with a ReLU between them; the input is `geometry` beside the spherical harmonics of
    the direction. Under `torch.autocast` the result has the dtype of the matrix products.
    """
    *hidden_layers, last = layers
    hidden = torch.cat((geometry, harmonics(directions, DEGREE).to(geometry.dtype)), -1)
    for weight in hidden_layers:
        hidden = (hidden @ weight).relu_()
    return hidden @ last

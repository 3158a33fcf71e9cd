"""The motion of a dynamic field: where a point was in the canonical scene, and what is different about it.

A network maps a point x of the unit cube and a time t to an offset in the cube and to a few features:

    (offset, features) = network(encoding(x, t))

The canonical scene is read at x + offset. Features let density and colour change where no offset explains the change:
something appears, or a shadow passes. The last layer starts near 0, so that training begins with a static scene.

`frequencies` encodes x and t by sines of low frequency (D-NeRF, Pumarola et al., 2021): motion is smooth in space.
`grids` encodes them by three hash grids over (x, y, t), (x, z, t) and (y, z, t) (after Grid4D, Xu et al., 2024): motion
may be as fine as the cells are, and the network can be shallow.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from raymine.contracts import Group
from raymine.errors import ConfigError, require_finite
from raymine.fields.initial import xavier
from raymine.fields.mlp_field import positional_encoding
from raymine.kernels.hash_grid.op import GridSpec, encode
from raymine.kernels.philox.op import Stream, uniform

MotionEncoding = Literal["frequencies", "grids"]

_SMALL = 1e-2
"""Factor on the initial weights of the last layer."""
_PLANES = ((0, 1), (0, 2), (1, 2))
"""The two axes of space of each grid."""


def _motion_grid() -> GridSpec:
    return GridSpec(levels=4, features=4, log2_entries=16, base=8, finest=64)


@dataclass(frozen=True)
class MotionConfig:
    """The shape of the network that moves points.

    encoding: of a point and a time; see the module docstring. width, depth: of the hidden layers. features: numbers for
    the density network beside the canonical encoding; 0: motion is an offset alone. rate: factor on the learning rate.
    position_frequencies, time_frequencies: sines of 1, 2, 4, .. times the coordinates, which are in -1 .. 1.
    grid: of each of the three hash grids. time_share: share of the cells of a side that the times 0 .. 1 span; a small
    one makes motion smooth in time.
    """

    encoding: MotionEncoding = "frequencies"
    width: int = 64
    depth: int = 4
    features: int = 16
    rate: float = 0.1
    position_frequencies: int = 5
    time_frequencies: int = 6
    grid: GridSpec = dataclasses.field(default_factory=_motion_grid)
    time_share: float = 0.5

    def __post_init__(self) -> None:
        require_finite(self)
        if self.encoding not in get_args(MotionEncoding):
            raise ConfigError(
                f"`encoding` must be one of {', '.join(get_args(MotionEncoding))}, got {self.encoding!r}."
            )
        if not (8 <= self.width <= 512 and 1 <= self.depth <= 12 and 0 <= self.features <= 64):
            raise ConfigError(
                "motion needs width 8 .. 512, depth 1 .. 12 and 0 .. 64 features; "
                f"got {self.width}, {self.depth} and {self.features}."
            )
        if not (0 <= self.position_frequencies <= 12 and 0 <= self.time_frequencies <= 12):
            raise ConfigError(
                "frequencies of motion must be in 0 .. 12, "
                f"got {self.position_frequencies} of positions and {self.time_frequencies} of times."
            )
        if not (self.rate > 0 and 0 < self.time_share <= 1):
            raise ConfigError(f"motion needs rate > 0 and 0 < time_share <= 1, got {self.rate} and {self.time_share}.")

    @property
    def inputs(self) -> int:
        """Numbers that the network takes for a point."""
        if self.encoding == "grids":
            return 4 + len(_PLANES) * self.grid.width
        return 5 + 6 * self.position_frequencies + 2 * self.time_frequencies


class Moved(NamedTuple):
    """Points in the canonical unit cube [n, 3] float32, and features [n, features] beside their encoding."""

    cube: Tensor
    features: Tensor


class Motion(nn.Module):
    """The network. Layers have no bias; a constant is among the inputs."""

    def __init__(self, config: MotionConfig, seed: int, first_layer: int, device: torch.device | str) -> None:
        """first_layer: number of the first layer in the draws of the seed; its tables have the numbers after it."""
        super().__init__()
        self.config = config
        shapes = [(config.inputs, config.width)] + [(config.width, config.width)] * (config.depth - 1)
        weights = [xavier(shape, seed, first_layer + i, device) for i, shape in enumerate(shapes)]
        last = xavier((config.width, 3 + config.features), seed, first_layer + config.depth, device) * _SMALL
        self.layers = nn.ParameterList([nn.Parameter(weight) for weight in (*weights, last)])
        tables, shape = [], (config.grid.total_entries, config.grid.features)
        if config.encoding == "grids":
            start = first_layer + config.depth + 1
            tables = [uniform(seed, start + i, Stream.INITIAL, shape, device) for i in range(len(_PLANES))]
        self.tables = nn.ParameterList([nn.Parameter((table * 2 - 1) * 1e-1) for table in tables])

    def groups(self, prefix: str) -> list[Group]:
        """Parameter groups; names begin with `prefix`."""
        layers = {f"{prefix}layers.{i}": value for i, value in enumerate(self.layers)}
        found = [Group("motion", layers, rate=self.config.rate)]
        if len(self.tables):
            tables = {f"{prefix}tables.{i}": value for i, value in enumerate(self.tables)}
            levels = tuple(self.config.grid.entries.tolist())
            found.append(Group("motion table", tables, rate=self.config.rate, decay=0.0, sparse=True, levels=levels))
        return found

    def forward(self, cube: Tensor, time: Tensor) -> Moved:
        """Points of the unit cube [n, 3] at times [n] in 0..1 -> where they are canonical. Differentiable.

        The last layer ignores `torch.autocast`: in bfloat16 an offset of 0.1 would be off by up to half a cell of
        1/2048, and in float16 its gradient, which grows with the resolution of the grid, might overflow.
        """
        hidden = self._encoded(cube, time)
        for weight in self.layers[:-1]:
            hidden = (hidden @ weight).relu_()
        with torch.autocast(cube.device.type, enabled=False):
            out = hidden.to(cube.dtype) @ self.layers[-1]
        return Moved(cube + out[:, :3], out[:, 3:])

    def _encoded(self, cube: Tensor, time: Tensor) -> Tensor:
        config, when = self.config, time[:, None]
        constant = torch.ones_like(when)
        if config.encoding == "frequencies":
            place = positional_encoding(cube * 2 - 1, config.position_frequencies)
            return torch.cat((constant, place, positional_encoding(when * 2 - 1, config.time_frequencies)), 1)
        scaled = 0.5 + (when - 0.5) * config.time_share
        points = [torch.cat((cube[:, a : a + 1], cube[:, b : b + 1], scaled), 1) for a, b in _PLANES]
        found = [encode(each, table, config.grid) for each, table in zip(points, self.tables, strict=True)]
        return torch.cat((constant, cube * 2 - 1, *found), 1)

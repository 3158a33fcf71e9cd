"""A field that changes with time: a canonical hash-grid scene, and a network that moves points into it.

With x in the unit cube and a time t (after D-NeRF, Pumarola et al., 2021, and TiNeuVox, Fang et al., 2022):

    (offset, m) = motion(x, t)                             `fields.motion`
    (density', g) = density network(hash encoding(x + offset), m)
    colour' = colour network(density', g, harmonics(direction))
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from raymine.contracts import Bounds, FieldInput, FieldOutput, Group, Memory
from raymine.errors import ConfigError
from raymine.fields.levels import in_place, level_weights
from raymine.fields.motion import Motion, MotionConfig
from raymine.fields.networks import Placed, check_networks, colour_network, hash_table, network_layers
from raymine.kernels.activations import NGP
from raymine.kernels.hash_grid.op import GridSpec, encode


@dataclass(frozen=True)
class DynamicFieldConfig:
    """The shape of a dynamic field. grid, width, geometry, colour_layers: as in `HashFieldConfig`, canonical."""

    dynamic: ClassVar[bool] = True

    grid: GridSpec = dataclasses.field(default_factory=GridSpec)
    width: int = 64
    geometry: int = 16
    colour_layers: int = 2
    motion: MotionConfig = dataclasses.field(default_factory=MotionConfig)

    def __post_init__(self) -> None:
        check_networks(self.width, self.geometry, self.colour_layers, widest=512)

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> DynamicField:
        """See `contracts.FieldConfig`."""
        return DynamicField(self, bounds, seed, device)

    def memory(self, bounds: Bounds) -> Memory:
        """Fixed: tables four times (values, gradient, two moments). Per sample: encodings, activations, gradients."""
        motion = self.motion
        numbers = self.grid.total_entries * self.grid.features
        if motion.encoding == "grids":
            numbers += 3 * motion.grid.total_entries * motion.grid.features
        layers = motion.depth * motion.width + (1 + self.colour_layers) * self.width
        return Memory(4 * 4 * numbers, 4 * 3 * (motion.inputs + self.grid.width + motion.features + layers + 64))


class DynamicField(Placed):
    """Pre-activations of density and colour at points and times (see `contracts.Field`). Layers have no bias."""

    activations = NGP

    def __init__(
        self, config: DynamicFieldConfig, bounds: Bounds, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(bounds, device)
        self.config = config
        self.table = hash_table(config.grid, seed, device)
        inputs = config.grid.width + config.motion.features
        self.density_layers, self.colour_layers = network_layers(
            inputs, config.width, config.geometry, config.colour_layers, seed, device
        )
        self.motion = Motion(config.motion, seed, config.colour_layers + 4, device)
        self._fading: Tensor | None = None

    def fade_levels(self, share: float) -> None:
        """See `contracts.FadesLevels`: levels are those of the canonical hash grid."""
        weights = level_weights(self.config.grid.levels, share, self.table.device)
        rows = None if weights is None else weights.repeat_interleave(self.config.grid.features)
        self._fading = in_place(self._fading, rows)

    def groups(self) -> list[Group]:
        """The table, which is sparse and has no weight decay; the networks; the network of motion and its tables."""
        levels = tuple(self.config.grid.entries.tolist())
        layers = {f"density_layers.{i}": value for i, value in enumerate(self.density_layers)}
        layers |= {f"colour_layers.{i}": value for i, value in enumerate(self.colour_layers)}
        table = Group("table", {"table": self.table}, decay=0.0, sparse=True, levels=levels)
        return [table, Group("network", layers), *self.motion.groups("motion.")]

    def encode(self, positions: Tensor, time: Tensor | None, known: Tensor | None = None) -> Tensor:
        """World positions [n, 3] at times [n] -> canonical encoding and features of motion [n, levels * F + features].

        known: the result for the same points from an earlier pass, so that the table need not be read again.
        Differentiable in the parameters and the positions.
        """
        if time is None:
            raise ConfigError(
                "this field changes with time, and `time` is missing.", hint="Pass a `time` in 0..1 for every point."
            )
        moved = self.motion(self._unit(positions), time)
        if known is not None:
            known = known[:, : self.config.grid.width].contiguous()
        encoding = encode(moved.cube, self.table, self.config.grid, known)
        return torch.cat((encoding, moved.features), 1)

    def geometry(self, encoded: Tensor) -> Tensor:
        """Encoding and features [n, levels * F + features] -> [n, geometry]; column 0 is the density pre-activation."""
        if self._fading is not None:
            width = self.config.grid.width
            encoded = torch.cat((encoded[:, :width] * self._fading, encoded[:, width:]), 1)
        return (encoded @ self.density_layers[0]).relu_() @ self.density_layers[1]

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        """World positions [n, 3] at times [n] in 0..1 -> density pre-activation [n]."""
        return self.geometry(self.encode(positions, time))[:, 0]

    @torch.no_grad()
    def density_and_features(self, positions: Tensor, time: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As `density`, and what `encode` gives, which `forward` can reuse (see `contracts.KeepsFeatures`)."""
        encoded = self.encode(positions, time)
        return self.geometry(encoded)[:, 0], encoded

    def forward(self, query: FieldInput) -> FieldOutput:
        """[n] points with directions and times -> pre-activations."""
        known = query.features
        if known is None or torch.is_grad_enabled():
            known = self.encode(query.positions, query.time, known)
        geometry = self.geometry(known)
        return FieldOutput(colour_network(geometry, query.directions, self.colour_layers), geometry[:, 0])

"""A small hash-grid network that has density alone: it finds where a ray meets something, at a fraction of the cost."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from raymine.contracts import Bounds, Group, Memory
from raymine.errors import ConfigError
from raymine.fields.initial import xavier
from raymine.fields.networks import Placed, hash_table
from raymine.kernels.activations import NGP
from raymine.kernels.hash_grid.op import GridSpec, encode


def _proposal_grid() -> GridSpec:
    return GridSpec(levels=5, features=2, log2_entries=17, base=16, finest=256)


@dataclass(frozen=True)
class DensityGridConfig:
    """The shape of a density network: a hash grid and one hidden layer of `width`."""

    grid: GridSpec = field(default_factory=_proposal_grid)
    width: int = 16

    def __post_init__(self) -> None:
        if not 4 <= self.width <= 256:
            raise ConfigError(f"`width` must be in 4 .. 256, got {self.width}.")

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> DensityGrid:
        """See `contracts.DensityConfig`."""
        return DensityGrid(self, bounds, seed, device)

    def memory(self, bounds: Bounds) -> Memory:
        """Fixed: the table four times (values, gradient, two moments). Per sample: features, activations, gradients."""
        per_sample = 4 * (2 * self.grid.width + 3 * self.width + 16)
        return Memory(4 * 4 * self.grid.total_entries * self.grid.features, per_sample)


class DensityGrid(Placed):
    """Density pre-activations (see `contracts.DensityField`). Layers have no bias. Space is contracted as in
    `fields.HashField`."""

    activations = NGP

    def __init__(
        self, config: DensityGridConfig, bounds: Bounds, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(bounds, device)
        self.config = config
        grid, width = config.grid, config.width
        self.table = hash_table(grid, seed, device)
        self.hidden = nn.Parameter(xavier((grid.width, width), seed, 1, device))
        self.out = nn.Parameter(xavier((width, 1), seed, 2, device))

    def groups(self) -> list[Group]:
        """Two groups: the table, which is sparse and has no weight decay, and the layers."""
        layers = {"hidden": self.hidden, "out": self.out}
        return [Group("table", {"table": self.table}, decay=0.0, sparse=True), Group("network", layers)]

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        """World positions [n, 3] -> density pre-activation [n]. The network is static: `time` is ignored."""
        encoding = encode(self._unit(positions), self.table, self.config.grid)
        return ((encoding @ self.hidden).relu_() @ self.out)[:, 0]

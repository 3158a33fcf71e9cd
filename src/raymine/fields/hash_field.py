"""The hash-grid field: a hash encoding, a small density network and a small view-dependent colour network."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from raymine.contracts import Bounds, FieldInput, FieldOutput, Group, Memory, Rays, Rendered, Samples
from raymine.fields.gradients import add_gradient
from raymine.fields.levels import in_place, level_weights
from raymine.fields.networks import Placed, check_networks, colour_network, hash_table, network_layers
from raymine.kernels import dispatch
from raymine.kernels.activations import NGP
from raymine.kernels.hash_grid.op import GridSpec, encode
from raymine.kernels.ngp_step.op import Network, infer, render, train


@dataclass(frozen=True)
class HashFieldConfig:
    """The shape of a hash-grid field.

    width: of the hidden layers. geometry: outputs of the density network, which the colour network takes as inputs; the
    first is the density pre-activation. colour_layers: hidden layers of the colour network.
    """

    grid: GridSpec = field(default_factory=GridSpec)
    width: int = 64
    geometry: int = 16
    colour_layers: int = 2

    def __post_init__(self) -> None:
        check_networks(self.width, self.geometry, self.colour_layers)

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> HashField:
        """See `contracts.FieldConfig`."""
        return HashField(self, bounds, seed, device)

    def memory(self, bounds: Bounds) -> Memory:
        """Fixed: the table four times (values, gradient, two moments). Per sample: features, activations, gradients."""
        return Memory(4 * 4 * int(self.grid.entries.sum()) * self.grid.features, 4096)


class HashField(Placed):
    """Pre-activations of density and view-dependent colour (see `contracts.Field`). Layers have no bias."""

    activations = NGP

    def __init__(
        self, config: HashFieldConfig, bounds: Bounds, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(bounds, device)
        self.config = config
        self.table = hash_table(config.grid, seed, device)
        self.density_layers, self.colour_layers = network_layers(
            config.grid.width, config.width, config.geometry, config.colour_layers, seed, device
        )
        self._fading: Tensor | None = None

    def fade_levels(self, share: float) -> None:
        """See `contracts.FadesLevels`."""
        weights = level_weights(self.config.grid.levels, share, self.table.device)
        rows = None if weights is None else weights.repeat_interleave(self.config.grid.features)[:, None]
        self._fading = in_place(self._fading, rows)

    @property
    def _first_layer(self) -> Tensor:
        """The first density layer [levels * features, width]. While levels are faded in, it has their weights.

        Scaling its rows is the same as scaling the encoding, and leaves the kernels as they are.
        """
        weight = self.density_layers[0]
        return weight if self._fading is None else weight * self._fading

    def groups(self) -> list[Group]:
        """Two groups: the table, which is sparse and has no weight decay, and the networks."""
        layers = {name: value for name, value in self.named_parameters() if name != "table"}
        levels = tuple(self.config.grid.entries.tolist())
        table = Group("table", {"table": self.table}, decay=0.0, sparse=True, levels=levels)
        return [table, Group("network", layers)]

    def encode(self, positions: Tensor, known: Tensor | None = None) -> Tensor:
        """World positions [n, 3] -> encoding [n, levels * features]. Differentiable in the table and the positions.

        known: the encoding of the same positions from an earlier pass, which then need not be computed.
        """
        return encode(self._unit(positions), self.table, self.config.grid, known)

    def geometry(self, encoding: Tensor) -> Tensor:
        """Encoding [n, levels * features] -> [n, geometry], of which column 0 is the density pre-activation."""
        return (encoding @ self._first_layer).relu_() @ self.density_layers[1]

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        """World positions [n, 3] -> density pre-activation [n]. The field is static: `time` is ignored."""
        return self.geometry(self.encode(positions))[:, 0]

    @torch.no_grad()
    def density_and_features(self, positions: Tensor, time: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As `density`, and the encoding, which `forward` can reuse (see `contracts.KeepsFeatures`)."""
        encoding = self.encode(positions)
        return self.geometry(encoding)[:, 0], encoding

    @property
    def along_rays(self) -> bool:
        """Whether this device has a kernel for whole rays. Its reference is slower than `forward`."""
        return dispatch.choose("ngp_step", self.table.device) != "reference"

    def infer(
        self, rays: Rays, samples: Samples, stop: float, faint: float, *, colour: bool, keep: bool
    ) -> tuple[FieldOutput, Tensor]:
        """See `contracts.SeesAlongRays`."""
        out = infer(self._network(), rays.origins, rays.directions, samples, stop, faint, colour=colour, keep=keep)
        return FieldOutput(out.colour, out.density), out.features

    def render(self, rays: Rays, samples: Samples, background: Tensor, stop: float, faint: float) -> Rendered:
        """See `contracts.RendersRays`."""
        out = render(self._network(), rays.origins, rays.directions, samples, background, stop, faint)
        return Rendered(*out, out.colour.new_empty(0))

    @torch.no_grad()
    def pull_back(self, query: FieldInput, colour: Tensor, density: Tensor) -> None:
        """See `contracts.PullsBack`. With the fused kernel (float32) the table's gradient is sparse.

        Positions and directions get no gradient.
        """
        if not self.along_rays:
            with torch.enable_grad():
                output = self.forward(query)
            torch.autograd.backward((output.colour, output.density), (colour, density))
            return
        found = train(self._network(), query.positions, query.directions, colour, density, query.features)
        first = found.layers[0] if self._fading is None else found.layers[0] * self._fading
        layers = (first, *found.layers[1:])
        for weight, grad in zip((*self.density_layers, *self.colour_layers), layers, strict=True):
            add_gradient(weight, grad)
        with torch.sparse.check_sparse_tensor_invariants(False):
            rows = torch.sparse_coo_tensor(found.rows[None], found.values, self.table.shape, is_coalesced=True)
        add_gradient(self.table, rows)

    def _network(self) -> Network:
        density = self._first_layer, self.density_layers[1]
        return Network(self.table, self.config.grid, density, tuple(self.colour_layers), self._box())

    def forward(self, query: FieldInput) -> FieldOutput:
        return self.decode(self.encode(query.positions, query.features), query.directions)

    def decode(self, encoding: Tensor, directions: Tensor) -> FieldOutput:
        """Encoding [n, levels * features] and unit directions [n, 3] -> pre-activations, by the networks alone.

        Under `torch.autocast` the outputs have the dtype of the matrix products.
        """
        geometry = self.geometry(encoding)
        return FieldOutput(colour_network(geometry, directions, self.colour_layers), geometry[:, 0])

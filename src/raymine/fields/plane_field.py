"""A field of planes: TensoRF's vector-matrix products or K-Planes' products of planes, then two small networks.

Features come from planes at several resolutions, concatenated (`kernels/planes`). Nothing is upsampled in training, so
parameters keep their shapes. The networks are those of the hash-grid field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from raymine.contracts import Bounds, FieldInput, FieldOutput, Group, Memory
from raymine.errors import ConfigError, require_finite
from raymine.fields.levels import in_place, level_weights
from raymine.fields.networks import Placed, check_networks, colour_network, network_layers
from raymine.kernels.activations import NGP
from raymine.kernels.philox.op import Stream, uniform
from raymine.kernels.planes.op import plane_product, vector_matrix
from raymine.kernels.threads import mean


@dataclass(frozen=True)
class PlaneFieldConfig:
    """The shape of a field of planes.

    product: `planes` multiplies the three planes of a resolution (K-Planes). `vm` multiplies each plane by a line along
        the third axis (TensoRF), which gives three times as many features.
    resolutions: vertices along a side of the planes, one number for each resolution. features: of a vertex.
    times: vertices along time, for a scene that moves: three planes over space and time join the product, at every
        resolution. 0: the field is static. It needs the product `planes`.
    width, geometry, colour_layers: of the networks, as in `HashFieldConfig`.
    network_rate: factor on the learning rate of the networks.
    """

    product: Literal["planes", "vm"] = "planes"
    resolutions: tuple[int, ...] = (64, 128, 256, 512)
    features: int = 16
    times: int = 0
    width: int = 64
    geometry: int = 16
    colour_layers: int = 2
    network_rate: float = 1.0

    def __post_init__(self) -> None:
        require_finite(self)
        if self.product not in ("planes", "vm"):
            raise ConfigError(f"`product` must be planes or vm, got {self.product!r}.")
        if not self.resolutions or not all(2 <= side <= 4096 for side in self.resolutions):
            raise ConfigError(f"`resolutions` must be numbers in 2 .. 4096, got {self.resolutions}.")
        if self.features not in (4, 8, 16, 32, 64):
            raise ConfigError(f"`features` must be 4, 8, 16, 32 or 64, got {self.features}.")
        if self.times and (self.product != "planes" or not 2 <= self.times <= 1024):
            raise ConfigError(
                "a field with `times` needs the product `planes` and 2 .. 1024 vertices along time, got "
                f"{self.product} and {self.times}.",
                hint="The lines of `vm` have no axis of time.",
            )
        check_networks(self.width, self.geometry, self.colour_layers)
        if not self.network_rate > 0:
            raise ConfigError(f"`network_rate` must be positive, got {self.network_rate}.")

    @property
    def dynamic(self) -> bool:
        """Whether the field depends on time."""
        return self.times > 0

    @property
    def encoded(self) -> int:
        """Numbers of an encoding."""
        return len(self.resolutions) * self.features * (3 if self.product == "vm" else 1)

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> PlaneField:
        """See `contracts.FieldConfig`."""
        return PlaneField(self, bounds, seed, device)

    def memory(self, bounds: Bounds) -> Memory:
        """Fixed: planes four times (values, gradient, two moments). Per sample: features, activations, gradients."""
        along = self.times if self.times else (1 if self.product == "vm" else 0)
        numbers = sum(3 * self.features * side * (side + along) for side in self.resolutions)
        layers = 2 + self.colour_layers
        return Memory(4 * 4 * numbers, 4 * (3 * self.encoded + 3 * layers * self.width + 128))


class PlaneField(Placed):
    """Pre-activations of density and view-dependent colour (see `contracts.Field`). Layers have no bias.

    Space is contracted as in `fields.HashField`. A field with `times` wants the time of every point.
    """

    activations = NGP

    def __init__(
        self, config: PlaneFieldConfig, bounds: Bounds, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(bounds, device)
        self.config = config
        self.density_layers, self.colour_layers = network_layers(
            config.encoded, config.width, config.geometry, config.colour_layers, seed, device
        )
        drawn, size = config.colour_layers + 4, config.features
        planes, second = [], []
        for level, side in enumerate(config.resolutions):
            planes.append(_drawn((3, side, side, size), seed, drawn + 2 * level, device))
            if config.product == "vm":
                second.append(_drawn((3, side, 1, size), seed, drawn + 2 * level + 1, device))
            elif config.times:
                # 1, so that a scene without motion is not changed by them.
                second.append(nn.Parameter(torch.ones(3, side, config.times, size, device=device)))
        self.planes, self.second = nn.ParameterList(planes), nn.ParameterList(second)
        self._fading: Tensor | None = None

    def fade_levels(self, share: float) -> None:
        """See `contracts.FadesLevels`: levels are the resolutions."""
        weights = level_weights(len(self.config.resolutions), share, self.low.device)
        each = self.config.encoded // len(self.config.resolutions)
        rows = None if weights is None else weights.repeat_interleave(each)
        self._fading = in_place(self._fading, rows)

    def groups(self) -> list[Group]:
        """Two groups: planes, without weight decay, of which a step touches a part, and the networks."""
        tables: dict[str, nn.Parameter] = {}
        networks: dict[str, nn.Parameter] = {}
        for name, value in self.named_parameters():
            (tables if name.startswith(("planes.", "second.")) else networks)[name] = value
        return [
            Group("table", tables, decay=0.0, sparse=True),
            Group("network", networks, rate=self.config.network_rate),
        ]

    def encode(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        """World positions [n, 3] and times [n] -> [n, encoded]. Differentiable in planes and positions."""
        points = self._unit(positions)
        if self.config.times:
            if time is None:
                raise ConfigError("this field depends on time, and the points have no `time`.")
            points = torch.cat((points, time[:, None].to(points.dtype)), -1)
        if self.config.product == "vm":
            found = [vector_matrix(points, *both) for both in zip(self.planes, self.second, strict=True)]
        elif self.config.times:
            found = [plane_product(points, *both) for both in zip(self.planes, self.second, strict=True)]
        else:
            found = [plane_product(points, planes) for planes in self.planes]
        encoded = torch.cat(found, -1) if len(found) > 1 else found[0]
        return encoded if self._fading is None else encoded * self._fading

    def geometry(self, encoding: Tensor) -> Tensor:
        """Encoding [n, encoded] -> [n, geometry], of which column 0 is the density pre-activation."""
        return (encoding @ self.density_layers[0]).relu_() @ self.density_layers[1]

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        """World positions [n, 3] -> density pre-activation [n]."""
        return self.geometry(self.encode(positions, time))[:, 0]

    @torch.no_grad()
    def density_and_features(self, positions: Tensor, time: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As `density`, and the encoding, which a `forward` without a graph need not repeat."""
        encoding = self.encode(positions, time)
        return self.geometry(encoding)[:, 0], encoding

    def forward(self, query: FieldInput) -> FieldOutput:
        """[n] points with directions -> pre-activations."""
        kept = None if torch.is_grad_enabled() else query.features
        geometry = self.geometry(self.encode(query.positions, query.time) if kept is None else kept)
        return FieldOutput(colour_network(geometry, query.directions, self.colour_layers), geometry[:, 0])

    def variation(self, step: int | Tensor) -> Tensor:
        """See `contracts.HasVariation`: over neighbours on planes and lines, summed over resolutions.

        Along time it is the second difference, so that steady motion costs nothing.
        """
        sums = [_differences(grid, axis) for grid in self.planes for axis in (1, 2)]
        for grid in self.second:
            sums.append(_differences(grid, 1))
            if grid.shape[2] > 2:
                sums.append(mean((grid[:, :, 2:] - 2 * grid[:, :, 1:-1] + grid[:, :, :-2]).square()))
        return torch.stack(sums).sum()


def _differences(grid: Tensor, axis: int) -> Tensor:
    """The mean squared difference of neighbours along an axis."""
    return mean(grid.diff(dim=axis).square())


def _drawn(shape: tuple[int, ...], seed: int, draw: int, device: torch.device | str) -> nn.Parameter:
    """Initial values of a factor, uniform in 0.1 .. 0.5, as K-Planes has them."""
    return nn.Parameter(uniform(seed, draw, Stream.INITIAL, shape, device) * 0.4 + 0.1)

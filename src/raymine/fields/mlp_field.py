"""The field of the original NeRF: positional encoding and a plain multilayer perceptron (Mildenhall et al., 2020).

With gamma_L(p) = (p, sin(2^0 p), cos(2^0 p), .., sin(2^(L-1) p), cos(2^(L-1) p)) for every coordinate,

    h = relu layers of gamma(x), with gamma(x) again as an input of layer `skip`
    density' = w h        colour' = V2 relu(V1 [W h, gamma(d)])

Positions are in the box of the scene, scaled to -1 .. 1; a scene without a box is contracted into it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from raymine.contracts import Bounds, FieldInput, FieldOutput, Memory
from raymine.errors import ConfigError
from raymine.fields.initial import xavier
from raymine.fields.levels import in_place, level_weights
from raymine.fields.networks import Placed
from raymine.kernels.activations import Activation, Activations

_ALIGNED = 8
"""Tensor cores multiply float16 and bfloat16 rows of such multiples at full speed, so encodings are padded with 0."""


@dataclass(frozen=True)
class MlpFieldConfig:
    """Shape of the network. `skip`: the layer, from 1, that sees the encoded position again; 0: none does."""

    depth: int = 8
    width: int = 256
    skip: int = 5
    position_frequencies: int = 10
    direction_frequencies: int = 4
    density: Activation = dataclasses.field(default_factory=lambda: Activation("softplus", shift=1.0))

    def __post_init__(self) -> None:
        if not (1 <= self.depth <= 32 and 8 <= self.width <= 1024):
            raise ConfigError(f"the MLP needs depth 1 .. 32 and width 8 .. 1024, got {self.depth} and {self.width}.")
        if not 0 <= self.skip <= self.depth:
            raise ConfigError(f"`skip` must be a layer from 1 to {self.depth}, or 0 for none, got {self.skip}.")
        if not (0 <= self.position_frequencies <= 20 and 0 <= self.direction_frequencies <= 20):
            raise ConfigError(
                f"frequencies must be in 0 .. 20, got {self.position_frequencies} and {self.direction_frequencies}."
            )

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> MlpField:
        """See `contracts.FieldConfig`."""
        return MlpField(self, bounds, seed).to(device)

    def memory(self, bounds: Bounds) -> Memory:
        """Weights four times; inputs, activations and their gradients of a sample."""
        weights = self.depth * self.width * (self.width + 6 * self.position_frequencies)
        return Memory(4 * 4 * weights, 2 * 4 * (self.depth + 2) * self.width)


class MlpField(Placed):
    """Density and view-dependent colour as pre-activations (`contracts.Field`, `KeepsFeatures`)."""

    def __init__(self, config: MlpFieldConfig, bounds: Bounds, seed: int = 0) -> None:
        super().__init__(bounds, "cpu")
        self.config = config
        self.activations = Activations(config.density, Activation("sigmoid"))
        position = 3 + 6 * config.position_frequencies
        direction = 3 + 6 * config.direction_frequencies
        width = config.width
        inputs = [position] + [width] * (config.depth - 1)
        if config.skip:
            inputs[config.skip - 1] += position if config.skip > 1 else 0
        shapes = [(n, width) for n in inputs]
        shapes += [(width, 1), (width, width), (width + direction, width // 2), (width // 2, 3)]
        layers = [_linear(shape, seed, layer) for layer, shape in enumerate(shapes)]
        self.trunk = nn.ModuleList(layers[: config.depth])
        self.density_head, self.bottleneck, self.view, self.colour_head = layers[config.depth :]
        self._fading: Tensor | None = None

    @property
    def _trunk(self) -> list[nn.Linear]:
        return cast("list[nn.Linear]", list(self.trunk))

    def fade_levels(self, share: float) -> None:
        """See `contracts.FadesLevels`: levels are the frequencies of positions."""
        self._fading = in_place(self._fading, level_weights(self.config.position_frequencies, share, self.low.device))

    def hidden(self, positions: Tensor) -> Tensor:
        """[n, 3] world positions -> [n, width]: the last layer before the heads."""
        unit = self._unit(positions) * 2 - 1
        encoded = _product_input(positional_encoding(unit, self.config.position_frequencies, self._fading))
        hidden = encoded
        for number, layer in enumerate(self._trunk, start=1):
            if number == self.config.skip and number > 1:
                hidden = torch.cat((hidden, encoded), -1)
            hidden = _product(layer, hidden).relu_()
        return hidden

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        """[n, 3] -> [n] density before activation. Static: `time` is ignored."""
        return self.density_head(self.hidden(positions))[:, 0]

    @torch.no_grad()
    def density_and_features(self, positions: Tensor, time: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As `density`, with the last hidden layer [n, width], which a `forward` without a graph need not repeat."""
        hidden = self.hidden(positions)
        return self.density_head(hidden)[:, 0], hidden

    def forward(self, query: FieldInput) -> FieldOutput:
        """[n] points with directions -> pre-activations."""
        kept = None if torch.is_grad_enabled() else query.features
        hidden = self.hidden(query.positions) if kept is None else kept
        encoded = _product_input(positional_encoding(query.directions, self.config.direction_frequencies))
        seen = _product(self.view, torch.cat((self.bottleneck(hidden), encoded.to(hidden.dtype)), -1)).relu_()
        return FieldOutput(self.colour_head(seen), self.density_head(hidden)[:, 0])


def positional_encoding(points: Tensor, frequencies: int, weights: Tensor | None = None) -> Tensor:
    """[n, D] -> [n, D (1 + 2 frequencies)]: the points, then the sines, then the cosines of 2^k times them.

    weights: [frequencies], factors on sine and cosine of each frequency; None is 1.
    """
    scaled = (points[:, None, :] * 2.0 ** torch.arange(frequencies, device=points.device)[:, None]).flatten(1)
    sine, cosine = torch.sin(scaled), torch.cos(scaled)
    if weights is not None:
        factors = weights.repeat_interleave(points.shape[1])
        sine, cosine = sine * factors, cosine * factors
    return torch.cat((points, sine, cosine), -1)


def _product_input(encoded: Tensor) -> Tensor:
    """The encoding [n, D] in the type of matrix products; under `torch.autocast` with columns of 0 up to `_ALIGNED`."""
    kind = encoded.device.type
    if not torch.is_autocast_enabled(kind):
        return encoded
    return pad(encoded.to(torch.get_autocast_dtype(kind)), (0, -encoded.shape[1] % _ALIGNED))


def _product(layer: nn.Linear, inputs: Tensor) -> Tensor:
    """`layer(inputs)`, where the last columns of the inputs may be padding."""
    spare = inputs.shape[1] - layer.in_features
    return linear(inputs, pad(layer.weight, (0, spare)) if spare else layer.weight, layer.bias)


def _linear(shape: tuple[int, int], seed: int, layer: int) -> nn.Linear:
    """A layer with weights drawn by the seed and no offset."""
    made = nn.Linear(*shape)
    with torch.no_grad():
        made.weight.copy_(xavier(shape, seed, layer).T)
        made.bias.zero_()
    return made

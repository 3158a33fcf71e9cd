"""Multi-layer perceptrons without biases, built from dictionaries.

The parameters are matrices [outputs, inputs], row by row, the first layer first. The inputs of the first layer and the
outputs of the last are padded to a multiple of 16.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from raymine.compat.tinycudann.options import Options, next_multiple
from raymine.compat.tinycudann.precision import with_loss_scale
from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.mlp.op import ACTIVATIONS, MOST_INPUTS, MOST_LAYERS, MOST_WIDTH, Activation, mlp, mlp_flat

ALIGNMENT = 16
MOST_NEURONS = 1 << 16
MOST_HIDDEN = 1 << 10
MOST_PARAMS = 1 << 31
FUSED_WIDTHS = (16, 32, 64, 128)
KINDS = {"FullyFusedMLP": True, "MegakernelMLP": True, "CutlassMLP": False, "MLP": False}
"""Names of networks, and whether they are restricted to FUSED_WIDTHS."""

NAMES: dict[str, Activation] = {
    "None": "none",
    "ReLU": "relu",
    "LeakyReLU": "leaky_relu",
    "Exponential": "exponential",
    "Sine": "sine",
    "Sigmoid": "sigmoid",
    "Squareplus": "squareplus",
    "Softplus": "softplus",
    "Tanh": "tanh",
}
"""tiny-cuda-nn's names of activations -> names in the op `mlp`."""


class Perceptron:
    """A network without its parameters; the caller passes them as a flat tensor."""

    def __init__(self, n_input_dims: int, n_output_dims: int, options: Options) -> None:
        self.fused = {name.lower(): fused for name, fused in KINDS.items()}[options.otype.lower()]
        self.width = options.whole("n_neurons", 128, high=MOST_NEURONS)
        if self.fused and self.width not in FUSED_WIDTHS:
            raise ConfigError(
                f"`n_neurons` of {options.otype} must be 16, 32, 64 or 128, got {self.width}. "
                "CutlassMLP takes any other."
            )
        self.n_hidden = options.whole("n_hidden_layers", 5, low=1 if self.fused else 0, high=MOST_HIDDEN)
        self.hidden = options.choice("activation", "ReLU", tuple(NAMES))
        self.output = options.choice("output_activation", "None", tuple(NAMES))
        options.refuse("feedback_alignment", False)
        self.n_input_dims, self.n_output_dims = next_multiple(n_input_dims, ALIGNMENT), n_output_dims
        self.padded_output_dims = next_multiple(n_output_dims, ALIGNMENT)
        widths = [self.n_input_dims, *[self.width] * self.n_hidden, self.padded_output_dims]
        self.shapes = [(after, before) for before, after in pairwise(widths)]
        self.n_params = sum(after * before for after, before in self.shapes)
        if self.n_params >= MOST_PARAMS:
            raise ConfigError(
                f"This {options.otype} would have {self.n_params} parameters; 2^31 is too many. Lower `n_neurons`, "
                "`n_input_dims` or `n_output_dims`."
            )

    def layers(self, params: Tensor) -> list[Tensor]:
        """params [n_params] -> matrices [outputs, inputs] as views; the last one without its padded rows."""
        pieces = params.split([after * before for after, before in self.shapes])
        found = [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]
        return [*found[:-1], found[-1][: self.n_output_dims]]

    def __call__(self, x: Tensor, params: Tensor, half: bool, loss_scale: float) -> Tensor:
        """x [n, n_input_dims] float32, params [n_params] -> [n, n_output_dims]. Differentiable in both.

        In half precision on a GPU it uses the op `mlp` if that supports the network; otherwise plain torch.
        """
        if half and self.fits and dispatch.choose("mlp", x.device) == "gpu":
            return self._fused(x, params)
        layers = self.layers(params)
        if not half or x.device.type == "cpu":
            return self._products(x, *layers)
        return with_loss_scale(self._halves, loss_scale, x, *layers, exact=self._products)

    @property
    def fits(self) -> bool:
        """Whether the op `mlp` supports networks of this size."""
        small = self.width <= MOST_WIDTH or self.n_hidden == 0
        return (
            small
            and self.n_input_dims <= MOST_INPUTS
            and self.n_output_dims <= MOST_WIDTH
            and len(self.shapes) <= MOST_LAYERS
        )

    def _fused(self, x: Tensor, params: Tensor) -> Tensor:
        """The network by the op `mlp`, which scales its half-precision gradients itself and needs no loss scale."""
        hidden, output = NAMES[self.hidden], NAMES[self.output]
        widths = (self.n_input_dims, *(after for after, _ in self.shapes))
        if all(width in (*FUSED_WIDTHS, 256) for width in widths):
            return mlp_flat(x, params, widths, self.n_output_dims, hidden=hidden, output=output)
        return mlp(x, [layer.t() for layer in self.layers(params)], hidden=hidden, output=output)

    def _halves(self, *tensors: Tensor) -> Tensor:
        return self._products(*(tensor.half() for tensor in tensors))

    def _products(self, x: Tensor, *layers: Tensor) -> Tensor:
        for layer in layers[:-1]:
            x = _activate(self.hidden, x @ layer.t())
        return _activate(self.output, x @ layers[-1].t())

    def bounds(self) -> list[tuple[int, float]]:
        """Initialisation: (number of parameters, bound) of each layer; weights are uniform in -bound..bound.

        The bound is Xavier's, or SIREN's if the hidden activation is a sine.
        """
        found = []
        for i, (after, before) in enumerate(self.shapes):
            if self.hidden == "Sine":
                bound = 30 / before if i == 0 else math.sqrt(6 / before)
            else:
                bound = math.sqrt(6 / (before + after))
            found.append((after * before, bound))
        return found

    def hyperparams(self) -> dict[str, Any]:
        return {
            "otype": "FullyFusedMLP" if self.fused else "CutlassMLP",
            "activation": self.hidden,
            "output_activation": self.output,
            "n_neurons": self.width,
            "n_hidden_layers": self.n_hidden,
        }


def _activate(name: str, x: Tensor) -> Tensor:
    """An activation. For half-precision x it is computed in float32, because squares overflow early in float16."""
    activation = ACTIVATIONS[NAMES[name]]
    if name in ("None", "ReLU") or x.dtype != torch.float16:
        return activation(x)
    return activation(x.float()).half()


def build(n_input_dims: int, n_output_dims: int, config: object) -> Perceptron:
    """The network that a dictionary describes. Without `otype`, it is an MLP (CutlassMLP)."""
    options = Options(config, "A network", "MLP")
    if options.otype.lower() not in {name.lower() for name in KINDS}:
        raise ConfigError(f"There is no network with the `otype` {options.otype!r}. There are: {', '.join(KINDS)}.")
    network = Perceptron(n_input_dims, n_output_dims, options)
    # tiny-cuda-nn adds these two options to a copy of the dictionary. Mark them as read, so `finish` does not warn.
    options.value("n_input_dims")
    options.value("n_output_dims")
    options.finish()
    return network

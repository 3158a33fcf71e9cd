"""The perceptron in plain torch, differentiable by autograd: the definition.

    x_0 = inputs,   x_{k+1} = a_k(x_k W_k)

a_k is the hidden activation; for the last layer it is the output activation. Activations, with K = 10, which makes
squareplus and softplus bend sharply near 0:

    none         x                        sigmoid      1 / (1 + exp(-x))
    relu         max(x, 0)                tanh         tanh(x)
    leaky_relu   x, 0.01 x below 0        sine         sin(x)
    exponential  exp(x)
    squareplus   (K x + sqrt((K x)^2 + 4)) / (2 K)
    softplus     log(1 + exp(K x)) / K
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

Activation = Literal[
    "none", "relu", "leaky_relu", "sigmoid", "exponential", "squareplus", "softplus", "tanh", "sine"
]  # fmt: skip

SHARPNESS = 10.0
"""K of squareplus and softplus."""

LEAK = 0.01
"""Slope of leaky_relu below 0."""


def _squareplus(x: Tensor) -> Tensor:
    x = x * SHARPNESS
    return (x + torch.sqrt(x * x + 4)) / (2 * SHARPNESS)


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x * SHARPNESS, torch.zeros_like(x)) / SHARPNESS


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "leaky_relu": lambda x: torch.nn.functional.leaky_relu(x, LEAK),
    "sigmoid": torch.sigmoid,
    "exponential": torch.exp,
    "squareplus": _squareplus,
    "softplus": _softplus,
    "tanh": torch.tanh,
    "sine": torch.sin,
}


def mlp(inputs: Tensor, layers: Sequence[Tensor], hidden: Activation, output: Activation) -> Tensor:
    """inputs [n, I], layers [I, H], ... [H, O] -> [n, O] in the type of `inputs`. Differentiable.

    It computes in float32, or in float64 if the inputs are float64.
    """
    kind = torch.float64 if inputs.dtype == torch.float64 else torch.float32
    x = inputs.to(kind)
    for layer in layers[:-1]:
        x = ACTIVATIONS[hidden](x @ layer.to(kind))
    return ACTIVATIONS[output](x @ layers[-1].to(kind)).to(inputs.dtype)

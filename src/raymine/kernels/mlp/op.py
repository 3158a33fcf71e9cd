"""Small multi-layer perceptrons: checks, dispatch and gradients (definition in `reference`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.mlp import reference
from raymine.kernels.mlp.reference import Activation as Activation

Precision = Literal["fp32", "fp16", "bf16"]
"""What the matrix products of the Triton kernels take. They add in float32 in any case."""

MOST_LAYERS, MOST_INPUTS, MOST_WIDTH = 6, 256, 128
"""Matrices of a network, width of its inputs, width of its hidden layers and outputs, at most."""

_KINDS = (torch.float32, torch.float16, torch.bfloat16)


def mlp(
    inputs: Tensor,
    layers: Sequence[Tensor],
    *,
    hidden: Activation = "relu",
    output: Activation = "none",
    precision: Precision = "fp16",
) -> Tensor:
    """A perceptron without biases: x W_0, hidden activation, ..., W_last, output activation.

    inputs: [n, I], I <= 256, float32, float16 or bfloat16.
    layers: 1 to 6 matrices [I, H], [H, H'], ... [H'', O], up to 128 wide, each of one of these types.
    precision: the type that matrix products take on the `gpu` backend; the reference computes in float32.
    Returns [n, O] in the type of `inputs`. Differentiable, on `gpu` once, in `inputs` and every layer; each gradient
    has the type of what it belongs to. With `fp16`, gradients are multiplied by 128 on their way through the layers, so
    those from above must stay below 500. Inputs and layers that are all float64 run on the reference, in float64.
    """
    _check(inputs, layers)
    for name, value, known in (
        ("hidden", hidden, get_args(Activation)),
        ("output", output, get_args(Activation)),
        ("precision", precision, get_args(Precision)),
    ):
        if value not in known:
            raise ConfigError(f"`{name}` must be one of {', '.join(known)}, got {value!r}.")
    backend = dispatch.choose("mlp", inputs.device)
    if backend == "reference" or inputs.dtype == torch.float64:
        return reference.mlp(inputs, layers, hidden, output)
    return _Mlp.apply(inputs, hidden, output, precision, *layers)


def _check(inputs: Tensor, layers: Sequence[Tensor]) -> None:
    """`ConfigError` for shapes, types and devices that no backend takes."""
    if inputs.ndim != 2 or not 1 <= inputs.shape[1] <= MOST_INPUTS:
        raise ConfigError(f"`inputs` must have shape [n, 1 to {MOST_INPUTS}], got {list(inputs.shape)}.")
    if not 1 <= len(layers) <= MOST_LAYERS:
        raise ConfigError(f"`layers` must hold 1 to {MOST_LAYERS} matrices, got {len(layers)}.")
    if inputs.dtype not in (*_KINDS, torch.float64):
        raise ConfigError(f"`inputs` must be float32, float16 or bfloat16, got {inputs.dtype}.")
    kinds = (torch.float64,) if inputs.dtype == torch.float64 else _KINDS
    width = inputs.shape[1]
    for m, layer in enumerate(layers):
        if layer.ndim != 2 or layer.shape[0] != width or not 1 <= layer.shape[1] <= MOST_WIDTH:
            raise ConfigError(
                f"`layers[{m}]` must have shape [{width}, 1 to {MOST_WIDTH}], got {list(layer.shape)}; "
                "a layer takes what the one before it gives."
            )
        if layer.dtype not in kinds:
            allowed = " or ".join(str(kind).removeprefix("torch.") for kind in kinds)
            raise ConfigError(f"`layers[{m}]` must be {allowed} with {inputs.dtype} inputs, got {layer.dtype}.")
        if layer.device != inputs.device:
            raise ConfigError(
                f"`inputs` is on {inputs.device} but `layers[{m}]` is on {layer.device}. Move one of them."
            )
        width = layer.shape[1]


class _Mlp(torch.autograd.Function):
    """The Triton kernels under autograd. Kept for the backward: inputs and packed layers, no activation."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, hidden: Activation, output: Activation, precision: Precision, *layers: Tensor
    ) -> Tensor:
        from raymine.kernels.mlp import gpu

        network = gpu.network_of(layers, hidden, output, precision)
        with dispatch.kernel_lock:
            weights = gpu.pack(layers, network)
            out = gpu.forward(inputs, weights, network)
        ctx.network, ctx.kinds = network, [layer.dtype for layer in layers]
        ctx.save_for_backward(inputs, weights)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from raymine.kernels.mlp import gpu

        if torch.is_grad_enabled():
            raise ConfigError(
                "`mlp` is differentiable once on the backend `gpu`, and `create_graph` asks for more. "
                'Run it under `dispatch.force("reference")`.'
            )
        inputs, weights = ctx.saved_tensors
        wanted = ctx.needs_input_grad[4:]
        with dispatch.kernel_lock:
            to_inputs, to_layers = gpu.backward(
                inputs, weights, grads[0], ctx.network, ctx.needs_input_grad[0], any(wanted)
            )
        ours = (to_layers[m].to(ctx.kinds[m]) if want else None for m, want in enumerate(wanted))
        return to_inputs, None, None, None, *ours

"""Small multi-layer perceptrons: checks, dispatch and gradients (definition in `reference`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch, double_backward
from raymine.kernels.mlp import reference
from raymine.kernels.mlp.reference import ACTIVATIONS as ACTIVATIONS
from raymine.kernels.mlp.reference import Activation as Activation

Precision = Literal["fp32", "fp16", "bf16"]
"""Type of the operands of the matrix products in the Triton kernels. Sums are always float32."""

MOST_LAYERS, MOST_INPUTS, MOST_WIDTH = 6, 256, 128
"""Most matrices of a network, most inputs, and most outputs of a layer."""

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
    layers: 1 to 6 matrices [I, H], [H, H'], ... [H'', O], each at most 128 wide and of one of these types.
    precision: type of the operands of matrix products on the `gpu` backend. The reference computes in float32.
    Returns [n, O] in the type of `inputs`. If inputs and layers are float64, the reference computes in float64.

    Differentiable in `inputs` and every layer, any number of times. Each gradient has the type of its tensor. The
    reference computes higher derivatives. With `fp16` the backward multiplies gradients by 128 to avoid underflow, so
    the gradient of the output must stay below 500.
    """
    _check(inputs, layers)
    _check_names(hidden, output, precision)
    if dispatch.choose("mlp", inputs.device) == "reference" or inputs.dtype == torch.float64:
        return reference.mlp(inputs, layers, hidden, output)
    return _Mlp.apply(inputs, hidden, output, precision, *layers)


def mlp_flat(
    inputs: Tensor,
    params: Tensor,
    widths: Sequence[int],
    outputs: int,
    *,
    hidden: Activation = "relu",
    output: Activation = "none",
    precision: Precision = "fp16",
) -> Tensor:
    """As `mlp`, with all weights in one flat tensor: inputs [n, widths[0]] -> [n, outputs].

    params: [sum of widths[k] * widths[k + 1]]; the layers [outputs, inputs] one after another, each row by row.
    widths: number of inputs, then outputs of each layer. Each is 16, 32, 64 or 128 (inputs also 256), and all hidden
        layers have the same width. So the kernels need no padding, and neither weights nor gradients are copied.
    outputs: how many columns of the last layer are returned. Differentiable in `inputs` and `params`.
    """
    widths = tuple(widths)
    sizes = [before * after for before, after in pairwise(widths)]
    _check_flat(inputs, params, widths, outputs)
    _check_names(hidden, output, precision)
    if dispatch.choose("mlp", inputs.device) == "reference" or inputs.dtype == torch.float64:
        return _flat_reference(inputs, params, widths, sizes, outputs, hidden, output)
    return _Flat.apply(inputs, params, widths, outputs, hidden, output, precision)


def _flat_reference(
    inputs: Tensor,
    params: Tensor,
    widths: tuple[int, ...],
    sizes: list[int],
    outputs: int,
    hidden: Activation,
    output: Activation,
) -> Tensor:
    shapes = zip(params.split(sizes), widths[1:], widths[:-1], strict=True)
    layers = [part.view(after, before).t() for part, after, before in shapes]
    return reference.mlp(inputs, layers, hidden, output)[:, :outputs]


def _check_names(hidden: str, output: str, precision: str) -> None:
    for name, value, known in (
        ("hidden", hidden, get_args(Activation)),
        ("output", output, get_args(Activation)),
        ("precision", precision, get_args(Precision)),
    ):
        if value not in known:
            raise ConfigError(f"`{name}` must be one of {', '.join(known)}, got {value!r}.")


def _check_flat(inputs: Tensor, params: Tensor, widths: tuple[int, ...], outputs: int) -> None:
    allowed = (16, 32, 64, 128)
    good = 2 <= len(widths) <= MOST_LAYERS + 1 and widths[0] in (*allowed, 256) and len(set(widths[1:-1])) <= 1
    if not good or any(width not in allowed for width in widths[1:]):
        raise ConfigError(
            f"`widths` must be 2 to {MOST_LAYERS + 1} of 16, 32, 64 and 128 (the first also 256), hidden ones all "
            f"alike; got {list(widths)}. `mlp` takes others."
        )
    if inputs.ndim != 2 or inputs.shape[1] != widths[0]:
        raise ConfigError(f"`inputs` must have shape [n, {widths[0]}], got {list(inputs.shape)}.")
    size = sum(before * after for before, after in pairwise(widths))
    if tuple(params.shape) != (size,) or params.device != inputs.device:
        raise ConfigError(
            f"`params` must have shape [{size}] on {inputs.device}, got {list(params.shape)} on {params.device}."
        )
    if not 1 <= outputs <= widths[-1]:
        raise ConfigError(f"`outputs` must be in 1 .. {widths[-1]}, got {outputs}.")
    kinds = (torch.float64,) if inputs.dtype == torch.float64 else _KINDS
    if inputs.dtype not in (*_KINDS, torch.float64) or params.dtype not in kinds:
        raise ConfigError(
            f"`inputs` and `params` must be float32, float16 or bfloat16, got {inputs.dtype} and {params.dtype}."
        )


def _check(inputs: Tensor, layers: Sequence[Tensor]) -> None:
    """Raise ConfigError for shapes, types and devices that no backend supports."""
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
    """The Triton kernels as an autograd function. It saves inputs, layers and packed layers, but no activations."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, hidden: Activation, output: Activation, precision: Precision, *layers: Tensor
    ) -> Tensor:
        from raymine.kernels.mlp import gpu

        widths = (layers[0].shape[0], *(layer.shape[1] for layer in layers))
        network = gpu.network_of(widths, hidden, output, precision)
        with dispatch.kernel_lock:
            weights = gpu.pack(layers, network)
            out = gpu.forward(inputs, weights, network)
        ctx.network, ctx.names = network, (hidden, output)
        ctx.save_for_backward(weights, inputs, *layers)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from raymine.kernels.mlp import gpu

        weights, inputs, *layers = ctx.saved_tensors
        needed = (ctx.needs_input_grad[0], *ctx.needs_input_grad[4:])
        if torch.is_grad_enabled():
            found = double_backward.gradients_with_graph(
                lambda x, *own: reference.mlp(x, own, *ctx.names), (inputs, *layers), needed, grads
            )
            return found[0], None, None, None, *found[1:]
        with dispatch.kernel_lock:
            to_inputs, flat = gpu.backward(inputs, weights, grads[0], ctx.network, needed[0], any(needed[1:]))
        if flat is None:
            return to_inputs, None, None, None, *(None for _ in layers)
        parts = zip(gpu.unpack(flat, ctx.network), layers, needed[1:], strict=True)
        return to_inputs, None, None, None, *(part.to(layer.dtype) if need else None for part, layer, need in parts)


class _Flat(torch.autograd.Function):
    """As `_Mlp`, for parameters that already have the memory layout of the kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        params: Tensor,
        widths: tuple[int, ...],
        outputs: int,
        hidden: Activation,
        output: Activation,
        precision: Precision,
    ) -> Tensor:
        from raymine.kernels.mlp import gpu

        network = gpu.network_of((*widths[:-1], outputs), hidden, output, precision, turned=True)
        network = network._replace(padded=widths)
        with dispatch.kernel_lock:
            weights = params.detach().to(network.kind).contiguous()
            out = gpu.forward(inputs, weights, network)
        ctx.network, ctx.rest = network, (widths, outputs, hidden, output)
        ctx.save_for_backward(weights, inputs, params)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from raymine.kernels.mlp import gpu

        weights, inputs, params = ctx.saved_tensors
        needed = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():
            widths, outputs, hidden, output = ctx.rest
            sizes = [before * after for before, after in pairwise(widths)]

            def again(x: Tensor, own: Tensor) -> Tensor:
                return _flat_reference(x, own, widths, sizes, outputs, hidden, output)

            return *double_backward.gradients_with_graph(again, (inputs, params), needed, grads), *(
                None for _ in range(5)
            )
        with dispatch.kernel_lock:
            to_inputs, flat = gpu.backward(inputs, weights, grads[0], ctx.network, *needed)
        return to_inputs, None if flat is None else flat.to(params.dtype), *(None for _ in range(5))

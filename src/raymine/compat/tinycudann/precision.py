"""Half precision: the type of outputs, and scaling of half-precision gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from raymine.errors import ConfigError

KINDS = (torch.float32, torch.float16)
_cpu_dtype = torch.float32


def set_cpu_dtype(dtype: torch.dtype) -> None:
    """Set the type of outputs on a CPU: float32, the default, or float16, the type of tiny-cuda-nn on a GPU.

    It applies from now on to every module that was not given a `dtype` of its own.
    """
    global _cpu_dtype
    if dtype not in KINDS:
        raise ConfigError(f"`dtype` must be torch.float32 or torch.float16, got {dtype}.")
    _cpu_dtype = dtype


def usual_dtype(device: torch.device) -> torch.dtype:
    """The default type of outputs on a device."""
    return _cpu_dtype if device.type == "cpu" else torch.float16


def with_loss_scale(
    function: Callable[..., Tensor], loss_scale: float, *inputs: Tensor, exact: Callable[..., Tensor]
) -> Tensor:
    """function(*inputs) as float32. Differentiable in the inputs.

    Inside `function`, gradients are multiplied by `loss_scale`; they are divided by it afterwards. exact: the same
    function in float32, which is used for gradients that are themselves differentiated.
    """
    if not 0 < loss_scale < math.inf:
        raise ConfigError(f"`loss_scale` must be above 0 and finite, got {loss_scale!r}.")
    out: Tensor = _Scaled.apply(function, exact, loss_scale, *inputs)
    return out


class _Scaled(torch.autograd.Function):
    """Runs `function` in its own graph, so that the loss scale does not leave it.

    Scaling single tensors of a shared graph would work for first derivatives. In second derivatives, the factors would
    not cancel.
    """

    @staticmethod
    def forward(
        ctx: Any, function: Callable[..., Tensor], exact: Callable[..., Tensor], scale: float, *inputs: Tensor
    ) -> Tensor:
        ctx.exact, ctx.scale = exact, scale
        ctx.save_for_backward(*inputs)
        needed = ctx.needs_input_grad[3:]
        with torch.enable_grad():
            ctx.leaves = [tensor.detach().requires_grad_(need) for tensor, need in zip(inputs, needed, strict=True)]
            ctx.out = function(*ctx.leaves)
        out: Tensor = ctx.out.detach().float()
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        graph = torch.is_grad_enabled()
        out, inputs = ctx.out, ctx.leaves
        if graph:
            # Views are new graph nodes. So autograd stops at them, even if one input depends on another.
            inputs = [tensor.view_as(tensor) for tensor in ctx.saved_tensors]
            out = ctx.exact(*inputs)
        wanted = [tensor for tensor, need in zip(inputs, ctx.needs_input_grad[3:], strict=True) if need]
        above = (grads[0] * ctx.scale).to(out.dtype)
        found = iter(torch.autograd.grad(out, wanted, above, create_graph=graph, retain_graph=True))
        return None, None, None, *(next(found) / ctx.scale if need else None for need in ctx.needs_input_grad[3:])

"""Running sums and products along packed rays: checks, dispatch and gradients (definition in `reference`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks, dispatch
from raymine.kernels.scan import reference

_HALVES = (torch.float16, torch.bfloat16)


def running_sum(
    values: Tensor, first: Tensor, count: Tensor, *, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Running sums of values [B] or [B, C] along each ray, in the shape and type of `values`.

    first, count [R] integers: ray r has the samples first[r] .. first[r] + count[r] - 1. No sample may have two rays;
    a sample without a ray gets NaN. exclusive: leave out the sample itself, so that the first of a ray gets 0.
    reverse: sum from the far end of each ray. float16 and bfloat16 are summed in float32.
    Differentiable in `values`, any number of times. The gradient is the same running sum in the other direction.
    """
    return _run(values, first, count, False, exclusive, reverse)


def running_product(values: Tensor, first: Tensor, count: Tensor, *, exclusive: bool = False) -> Tensor:
    """Running products of values [B] or [B, C] along each ray; arguments as for `running_sum`.

    exclusive: leave out the sample itself, so that the first of a ray gets 1. Differentiable in `values`, also where a
    factor is 0, because nothing is divided. With g the gradient of the result,

        dLoss/dx_i = (x_1 ... x_{i-1}) rest_i,    rest_i = g_i + x_{i+1} rest_{i+1}            inclusive
                                                  rest_i = g_{i+1} + x_{i+1} rest_{i+1}        exclusive

    The reference computes higher derivatives.
    """
    return _run(values, first, count, True, exclusive, False)


def _run(values: Tensor, first: Tensor, count: Tensor, product: bool, exclusive: bool, reverse: bool) -> Tensor:
    if values.ndim not in (1, 2) or not values.is_floating_point():
        raise ConfigError(
            f"`values` must be floating-point of shape [B] or [B, C], got {values.dtype} of shape "
            f"{list(values.shape)}. Values [R, n] are scanned without a pack."
        )
    first, count = checks.ranges(first, count, len(values), values.device)
    backend = dispatch.choose("scan", values.device)
    wide = values.float() if values.dtype in _HALVES else values
    rows = wide[:, None] if values.ndim == 1 else wide
    if backend == "reference":
        out = reference.scan(rows, first, count, product, exclusive, reverse, torch.nan)
    else:
        out = _Scan.apply(rows, first, count, product, exclusive, reverse, torch.nan, backend)
    return out.reshape(values.shape).to(values.dtype)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        first: Tensor,
        count: Tensor,
        product: bool,
        exclusive: bool,
        reverse: bool,
        fill: float,
        backend: dispatch.Backend,
    ) -> Tensor:
        with dispatch.kernel_lock:
            out: Tensor = dispatch.kernels("scan", backend).scan(
                values, first, count, product, exclusive, reverse, fill
            )
        ctx.how = product, exclusive, reverse, backend
        ctx.save_for_backward(first, count, *((values, out if exclusive else None) if product else ()))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        product, exclusive, reverse, backend = ctx.how
        first, count, *kept = ctx.saved_tensors
        nothing = (None,) * 7
        if not product:
            # A sample without a ray contributes to no sum, so its gradient is 0.
            return _Scan.apply(grads[0], first, count, False, exclusive, not reverse, 0.0, backend), *nothing
        values, before = kept
        if torch.is_grad_enabled():
            # The caller wants to differentiate this gradient, which only the reference supports.
            out = reference.scan(values, first, count, True, exclusive, False, torch.nan)
            return torch.autograd.grad(out, values, grads[0], create_graph=True)[0], *nothing
        kernels = dispatch.kernels("scan", backend)
        with dispatch.kernel_lock:
            if before is None:
                before = kernels.scan(values, first, count, True, True, False, 0.0)
            return kernels.product_gradient(values, before, grads[0], first, count, exclusive), *nothing

"""Features of points from planes (TensoRF, K-Planes): checks, dispatch, gradients (definition in `reference`)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks, dispatch, double_backward
from raymine.kernels.planes import reference

__all__ = ["plane_product", "vector_matrix"]


def plane_product(positions: Tensor, planes: Tensor, times: Tensor | None = None) -> Tensor:
    """The product of all planes at each point (K-Planes).

    positions: [n, 3] in 0..1, or [n, 4] with `times`, whose last column is the time; other coordinates are clamped, and
        a point with NaN has NaN features.
    planes: [3, A, A, C], plane i across axis i. times: [3, A, B, C], plane i over axis i and time.
    Returns [n, C]. Differentiable in everything, any number of times.
    """
    _check(positions, planes, times, 3 if times is None else 4)
    return _features(positions, planes, times, separate=False)


def vector_matrix(positions: Tensor, planes: Tensor, lines: Tensor) -> Tensor:
    """Plane i times line i, for the three axes one after the other (TensoRF).

    positions: [n, 3] in 0..1, as in `plane_product`. planes: [3, A, A, C]. lines: [3, A, 1, C], line i along axis i.
    Returns [n, 3 C]. Differentiable in everything, any number of times.
    """
    _check(positions, planes, lines, 3)
    if lines.shape[2] != 1:
        raise ConfigError(f"`lines` must be [3, A, 1, C], got {list(lines.shape)}.")
    return _features(positions, planes, lines, separate=True)


def _check(positions: Tensor, planes: Tensor, second: Tensor | None, dimensions: int) -> None:
    n = positions.shape[0] if positions.ndim else 0
    shape = tuple(planes.shape)
    if len(shape) != 4 or shape[0] != 3 or shape[1] != shape[2] or shape[1] < 2 or shape[3] < 1:
        raise ConfigError(f"`planes` must be [3, A, A, C] with A >= 2, got {list(shape)}.")
    named = [("positions", positions, (n, dimensions)), ("planes", planes, shape)]
    if second is not None:
        size = second.shape[2] if second.ndim == 4 else 0
        if size < 1:
            raise ConfigError(f"the second factor must be [3, A, B, C] with B >= 1, got {list(second.shape)}.")
        named.append(("lines" if dimensions == 3 else "times", second, (3, shape[1], size, shape[3])))
    checks.floats(tuple(named), positions.device)


def _features(positions: Tensor, planes: Tensor, second: Tensor | None, *, separate: bool) -> Tensor:
    backend = dispatch.choose("planes", positions.device) if positions.dtype is torch.float32 else "reference"
    if backend == "reference":
        return _reference(positions, planes, second, separate=separate)
    return _Features.apply(positions, planes, second, separate, backend)


def _reference(positions: Tensor, planes: Tensor, second: Tensor | None, *, separate: bool) -> Tensor:
    lost = positions.isnan().any(-1, keepdim=True)
    there = torch.where(lost, 0.0, positions).clamp(0.0, 1.0)
    return torch.where(lost, torch.nan, reference.features(there, planes, second, separate))


class _Features(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        positions: Tensor,
        planes: Tensor,
        second: Tensor | None,
        separate: bool,
        backend: dispatch.Backend,
    ) -> Tensor:
        ctx.separate, ctx.backend = separate, backend
        ctx.save_for_backward(positions, planes, second)
        with dispatch.kernel_lock:
            out: Tensor = dispatch.kernels("planes", backend).features(positions, planes, second, separate)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        positions, planes, second = ctx.saved_tensors
        if torch.is_grad_enabled():
            again = partial(_reference, separate=ctx.separate)
            if second is None:
                again = partial(again, second=None)
                found = double_backward.gradients_with_graph(
                    again, (positions, planes), ctx.needs_input_grad[:2], grads
                )
                return (*found, None, None, None)
            tensors = (positions, planes, second)
            return (*double_backward.gradients_with_graph(again, tensors, ctx.needs_input_grad[:3], grads), None, None)
        with dispatch.kernel_lock:
            found = dispatch.kernels("planes", ctx.backend).gradients(
                positions, planes, second, ctx.separate, grads[0].float(), with_positions=ctx.needs_input_grad[0]
            )
        return (*found, None, None)

"""Trilinear interpolation in a sparse grid: checks, dispatch, gradients (definition in `reference`)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks, dispatch, double_backward
from raymine.kernels.voxels import reference

__all__ = ["interpolate"]


def interpolate(positions: Tensor, index: Tensor, side: Tensor, table: Tensor, missing: float = 0.0) -> Tensor:
    """Values of a sparse grid at points.

    positions: [n, 3] in 0..1; other coordinates are clamped, and a point with NaN has NaN values.
    index: [at least S^3] int32, the row of every vertex or -1. side: [1] int32, S, on the same device; at least 2.
    table: [rows, C]. missing: the value of vertices without a row.
    Returns [n, C]. Differentiable in `table` and `positions`, any number of times. The Numba kernel gives `table` a
    sparse gradient: the rows that the points touch, each once, in ascending order.
    """
    n = positions.shape[0] if positions.ndim else 0
    if table.ndim != 2 or not table.numel():
        raise ConfigError(f"`table` must be [rows, C] with at least one row and column, got {list(table.shape)}.")
    own = checks.floats((("positions", positions, (n, 3)), ("table", table, tuple(table.shape))), positions.device)
    for name, tensor, shape in (("index", index, (index.numel(),)), ("side", side, (1,))):
        if tensor.dtype != torch.int32 or tuple(tensor.shape) != shape or tensor.device != positions.device:
            raise ConfigError(
                f"`{name}` must be int32 of shape {list(shape)} on {positions.device}, got {tensor.dtype} of shape "
                f"{list(tensor.shape)} on {tensor.device}."
            )
    backend = dispatch.choose("voxels", positions.device) if own is torch.float32 else "reference"
    if positions.device.type == "cpu" and not 8 <= int(side[0]) ** 3 <= index.numel():
        raise ConfigError(f"`side` must be at least 2, and `index` must hold side^3 numbers; got {int(side[0])}.")
    if backend == "reference":
        return _reference(positions, table, index, side, missing)
    return _Interpolate.apply(positions, table, index, side, missing, backend)


def _reference(positions: Tensor, table: Tensor, index: Tensor, side: Tensor, missing: float) -> Tensor:
    lost = positions.isnan().any(-1, keepdim=True)
    there = torch.where(lost, 0.0, positions).clamp(0.0, 1.0)
    return torch.where(lost, torch.nan, reference.interpolate(there, index, side, table, missing))


class _Interpolate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        positions: Tensor,
        table: Tensor,
        index: Tensor,
        side: Tensor,
        missing: float,
        backend: dispatch.Backend,
    ) -> Tensor:
        ctx.missing, ctx.backend = missing, backend
        ctx.save_for_backward(positions, table, index, side)
        with dispatch.kernel_lock:
            out: Tensor = dispatch.kernels("voxels", backend).interpolate(positions, index, side, table, missing)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        positions, table, index, side = ctx.saved_tensors
        if torch.is_grad_enabled():
            again = partial(_reference, index=index, side=side, missing=ctx.missing)
            found = double_backward.gradients_with_graph(again, (positions, table), ctx.needs_input_grad[:2], grads)
            return (*found, None, None, None, None)
        kernels, grad = dispatch.kernels("voxels", ctx.backend), grads[0].float()
        to_positions = to_table = None
        with dispatch.kernel_lock:
            if ctx.needs_input_grad[0]:
                to_positions = kernels.position_gradient(positions, index, side, table, ctx.missing, grad)
            if ctx.needs_input_grad[1]:
                to_table = kernels.table_gradient(positions, index, side, table, grad)
        return to_positions, to_table, None, None, None, None

"""Multi-resolution hash grid encoding: checks, dispatch and gradients."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.hash_grid import reference
from raymine.kernels.hash_grid.spec import GridSpec as GridSpec


def encode(positions: Tensor, table: Tensor, spec: GridSpec, known: Tensor | None = None) -> Tensor:
    """Encode points by trilinear interpolation in every level of a hash grid.

    positions: [n, 3] float32; values outside 0..1 are clamped to it (and receive no gradient there).
    table: [spec.total_entries, F] float32.
    known: the encoding [n, L * F] of just these points by just this table, where an earlier pass has computed it; it is
        then returned with a graph instead of being computed again.
    Returns [n, L * F]. Differentiable in `table` and `positions`.
    """
    if positions.ndim != 2 or positions.shape[1] != 3:
        raise ConfigError(f"`positions` must have shape [n, 3], got {list(positions.shape)}.")
    if tuple(table.shape) != (spec.total_entries, spec.features):
        raise ConfigError(
            f"`table` must have shape [{spec.total_entries}, {spec.features}] for {spec}, got {list(table.shape)}."
        )
    if positions.device != table.device:
        raise ConfigError(f"`positions` is on {positions.device} but `table` is on {table.device}. Move one of them.")
    if known is not None and tuple(known.shape) != (positions.shape[0], spec.width):
        raise ConfigError(f"`known` must have shape [{positions.shape[0]}, {spec.width}], got {list(known.shape)}.")
    positions = positions.clamp(0.0, 1.0)
    backend = dispatch.choose("hash_grid", positions.device)
    if backend == "reference":
        return reference.encode(positions, table, spec)
    return _Encode.apply(positions, table, spec, known, backend)


def _kernels(backend: dispatch.Backend) -> ModuleType:
    """The module of a backend; importing one takes what it is made with."""
    if backend == "gpu":
        from raymine.kernels.hash_grid import gpu

        return gpu
    from raymine.kernels.hash_grid import cpu

    return cpu


class _Encode(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, positions: Tensor, table: Tensor, spec: GridSpec, known: Tensor | None, backend: dispatch.Backend
    ) -> Tensor:
        ctx.spec, ctx.backend = spec, backend
        ctx.save_for_backward(positions, table)
        if known is not None:
            return known.view_as(known)
        with dispatch.kernel_lock:
            return _kernels(backend).encode(positions, table, spec)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        kernels = _kernels(ctx.backend)
        positions, table = ctx.saved_tensors
        with dispatch.kernel_lock:
            to_positions = (
                kernels.position_gradient(positions, table, grads[0], ctx.spec) if ctx.needs_input_grad[0] else None
            )
            to_table = kernels.table_gradient(positions, grads[0], ctx.spec) if ctx.needs_input_grad[1] else None
        return to_positions, to_table, None, None, None

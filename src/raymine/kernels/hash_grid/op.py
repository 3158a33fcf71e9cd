"""Multi-resolution hash grid encoding: checks, dispatch and gradients."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.hash_grid import reference
from raymine.kernels.hash_grid.spec import PRIMES as PRIMES
from raymine.kernels.hash_grid.spec import GridSpec as GridSpec
from raymine.kernels.hash_grid.spec import GrownSpec as GrownSpec
from raymine.kernels.hash_grid.spec import grown_scale as grown_scale

Precision = Literal["fp32", "fp16", "bf16"]
_HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def encode(
    positions: Tensor,
    table: Tensor,
    spec: GridSpec,
    known: Tensor | None = None,
    precision: Precision = "fp32",
    kind: torch.dtype | None = None,
) -> Tensor:
    """Encode points by trilinear interpolation in every level of a hash grid.

    positions: [n, 3] float32; values outside 0..1 are clamped to it (and receive no gradient there). A point with NaN
        gives NaN and takes no part in gradients.
    table: [spec.total_entries, F] float32.
    known: the encoding [n, L * F] of just these points by just this table, where an earlier pass has computed it; it is
        then returned with a graph instead of being computed again.
    precision: with fp16 or bf16 entries are read in that type, which halves what a lookup moves; weights, sums and the
        gradients of the float32 table stay float32.
    kind: the type of the result; that of `precision` if None.
    Returns [n, L * F]. Differentiable in `table` and `positions`, any number of times; gradients that are themselves to
    be differentiated (`create_graph=True`) are computed by the reference, whatever the backend.
    """
    if precision not in ("fp32", *_HALVES):
        raise ConfigError(f"`precision` must be fp32, fp16 or bf16, got {precision!r}.")
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
    backend = dispatch.choose("hash_grid", positions.device)
    half = _HALVES.get(precision)
    kind = kind or half
    if backend == "gpu":
        return _Encode.apply(positions, table, spec, known, backend, half, kind)
    # Only the Triton kernels see to NaN and to points outside by themselves.
    lost = positions.isnan().any(-1, keepdim=True)
    if positions.device.type == "cpu" and not bool(lost.any()):
        return _encode_inside(positions.clamp(0.0, 1.0), table, spec, known, backend, half, kind)
    there = torch.where(lost, 0.0, positions).clamp(0.0, 1.0)
    return torch.where(lost, torch.nan, _encode_inside(there, table, spec, known, backend, half, kind))


def _encode_inside(
    positions: Tensor,
    table: Tensor,
    spec: GridSpec,
    known: Tensor | None,
    backend: dispatch.Backend,
    half: torch.dtype | None,
    kind: torch.dtype | None,
) -> Tensor:
    if backend != "reference":
        return _Encode.apply(positions, table, spec, known, backend, half, kind)
    out = reference.encode(positions, _rounded(table, half), spec)
    return out if kind is None else out.to(kind)


def _rounded(table: Tensor, half: torch.dtype | None) -> Tensor:
    """The table as read in a half type; gradients pass by the rounding."""
    return table if half is None else table + (table.to(half).to(table.dtype) - table).detach()


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
        ctx: Any,
        positions: Tensor,
        table: Tensor,
        spec: GridSpec,
        known: Tensor | None,
        backend: dispatch.Backend,
        half: torch.dtype | None,
        kind: torch.dtype | None,
    ) -> Tensor:
        ctx.spec, ctx.backend, ctx.half = spec, backend, half
        whole = table
        if half is not None:
            # Numba has no half-precision numbers.
            table = table.to(half) if backend == "gpu" else table.to(half).float()
        ctx.save_for_backward(positions, whole, table)
        if known is not None:
            return known.view_as(known)
        with dispatch.kernel_lock:
            if backend == "gpu":
                return _kernels(backend).encode(positions, table, spec, kind)
            out: Tensor = _kernels(backend).encode(positions, table, spec)
        return out if kind is None else out.to(kind)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        positions, whole, table = ctx.saved_tensors
        if torch.is_grad_enabled():
            return (*_gradients_with_graph(ctx, positions, whole, grads[0]), None, None, None, None, None)
        kernels = _kernels(ctx.backend)
        grad = grads[0].float()
        with dispatch.kernel_lock:
            to_positions = (
                kernels.position_gradient(positions, table, grad, ctx.spec) if ctx.needs_input_grad[0] else None
            )
            to_table = kernels.table_gradient(positions, grad, ctx.spec) if ctx.needs_input_grad[1] else None
        return to_positions, to_table, None, None, None, None, None


def _gradients_with_graph(
    ctx: Any, positions: Tensor, table: Tensor, grad: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of positions and table that can be differentiated in both and in `grad`."""
    # Through views, so that no other way from one of them to the other is followed.
    ours = (positions.view_as(positions), table.view_as(table))
    lost = ours[0].isnan().any(-1, keepdim=True)
    there = torch.where(lost, 0.0, ours[0]).clamp(0.0, 1.0)
    out = torch.where(lost, 0.0, reference.encode(there, _rounded(ours[1], ctx.half), ctx.spec))
    wanted = [tensor for tensor, needed in zip(ours, ctx.needs_input_grad[:2], strict=True) if needed]
    found = iter(torch.autograd.grad(out, wanted, grad.to(out.dtype), create_graph=True))
    to_positions, to_table = (next(found) if needed else None for needed in ctx.needs_input_grad[:2])
    return to_positions, to_table

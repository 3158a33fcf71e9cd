"""Multi-resolution hash grid encoding: checks, dispatch and gradients."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks, dispatch, double_backward
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

    positions: [n, 3] float32. Coordinates outside 0..1 are clamped and get gradient 0. A point with NaN gives NaN and
        contributes nothing to gradients.
    table: [spec.total_entries, F] float32.
    known: [n, L * F], the encoding of the same points with the same table, if an earlier pass has computed it. It is
        returned, connected to the graph, instead of being computed again.
    precision: fp16 and bf16 round the entries to that type, which halves the memory traffic of a lookup. Weights, sums
        and the gradient of the float32 table stay float32.
    kind: type of the result; None: the type of `precision`.
    Returns [n, L * F]. Differentiable in `table` and `positions`, any number of times. With `create_graph=True` the
    reference computes the gradients, on every backend.
    """
    if precision not in ("fp32", *_HALVES):
        raise ConfigError(f"`precision` must be fp32, fp16 or bf16, got {precision!r}.")
    n = positions.shape[0] if positions.ndim else 0
    entries = (spec.total_entries, spec.features)
    own = checks.floats((("positions", positions, (n, 3)), ("table", table, entries)), positions.device)
    half = _HALVES.get(precision)
    if kind is not None and not kind.is_floating_point:
        raise ConfigError(f"`kind` must be a floating-point type, got {kind}.")
    kind = kind or half
    checks.floats((("known", known, (n, spec.width)),), positions.device, kind or own)
    backend = dispatch.choose("hash_grid", positions.device) if own is torch.float32 else "reference"
    if backend == "gpu":
        return _Encode.apply(positions, table, spec, known, backend, half, kind)
    # The Triton kernels handle NaN and points outside 0..1 themselves; the other backends do not.
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
    """The table, rounded to a half type; the gradient ignores the rounding (straight-through)."""
    return table if half is None else table + (table.to(half).to(table.dtype) - table).detach()


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
            # Numba has no half-precision types, so the rounded table is converted back to float32.
            table = table.to(half) if backend == "gpu" else table.to(half).float()
        ctx.save_for_backward(positions, whole, table)
        if known is not None:
            return known.view_as(known)
        with dispatch.kernel_lock:
            if backend == "gpu":
                return dispatch.kernels("hash_grid", backend).encode(positions, table, spec, kind)
            out: Tensor = dispatch.kernels("hash_grid", backend).encode(positions, table, spec)
        return out if kind is None else out.to(kind)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        positions, whole, table = ctx.saved_tensors
        if torch.is_grad_enabled():
            again = partial(_reference, spec=ctx.spec, half=ctx.half)
            found = double_backward.gradients_with_graph(again, (positions, whole), ctx.needs_input_grad[:2], grads)
            return (*found, None, None, None, None, None)
        kernels = dispatch.kernels("hash_grid", ctx.backend)
        grad = grads[0].float()
        with dispatch.kernel_lock:
            to_positions = (
                kernels.position_gradient(positions, table, grad, ctx.spec) if ctx.needs_input_grad[0] else None
            )
            to_table = kernels.table_gradient(positions, grad, ctx.spec) if ctx.needs_input_grad[1] else None
        return to_positions, to_table, None, None, None, None, None


def _reference(positions: Tensor, table: Tensor, spec: GridSpec, half: torch.dtype | None) -> Tensor:
    """What the kernels compute, by torch: a position that is NaN has an encoding without a gradient."""
    lost = positions.isnan().any(-1, keepdim=True)
    there = torch.where(lost, 0.0, positions).clamp(0.0, 1.0)
    return torch.where(lost, 0.0, reference.encode(there, _rounded(table, half), spec))

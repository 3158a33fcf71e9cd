"""Volume rendering of packed samples: checks, dispatch and gradients (definition in `reference`)."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.composite import reference


class Composited(NamedTuple):
    """colour [R, 3] over the background, opacity [R], depth [R] (sum of weight * midpoint), weights [B]."""

    colour: Tensor
    opacity: Tensor
    depth: Tensor
    weights: Tensor


class Packed(NamedTuple):
    """Intervals of packed samples: t_start, t_end [B]; first, count [R] int64 (a ray owns first .. first + count)."""

    t_start: Tensor
    t_end: Tensor
    first: Tensor
    count: Tensor  # type: ignore[assignment]  # shadows a method of tuple


def composite(density: Tensor, colour: Tensor, packed: Packed, background: Tensor, stop: float = 1e-4) -> Composited:
    """Render rays from the density [B] >= 0 and colour [B, 3] of their samples over a background [R, 3].

    Rays lie end to end: first[0] = 0, first[r + 1] = first[r] + count[r], and all B samples belong to a ray.
    Samples behind a transmittance below `stop` count for nothing. Differentiable in density, colour and background
    through all four results.
    """
    samples, rays = packed.t_start.shape[0], packed.first.shape[0]
    for name, value, shape in (
        ("density", density, (samples,)),
        ("colour", colour, (samples, 3)),
        ("t_end", packed.t_end, (samples,)),
        ("count", packed.count, (rays,)),
        ("background", background, (rays, 3)),
    ):
        if tuple(value.shape) != shape:
            raise ConfigError(f"`{name}` must have shape {list(shape)}, got {list(value.shape)}.")
    backend = dispatch.choose("composite", density.device)
    if density.dtype == torch.float32 and backend != "reference":
        return Composited(*_Composite.apply(density, colour, *packed, background, stop, backend))
    return Composited(*reference.composite(density, colour, *packed, background, stop))


def visible(density: Tensor, packed: Packed, stop: float = 1e-4, faint: float = 0.0) -> Tensor:
    """[B] bool: samples before early stop whose own opacity is at least `faint`. Not differentiable."""
    backend = dispatch.choose("composite", density.device)
    if density.dtype == torch.float32 and backend != "reference":
        with dispatch.kernel_lock:
            return _kernels(backend).visible(density, *packed, stop, faint)
    return reference.visible(density.detach(), *packed, stop, faint)


def _kernels(backend: dispatch.Backend) -> ModuleType:
    """The module of a backend; importing one takes what it is made with."""
    if backend == "gpu":
        from raymine.kernels.composite import gpu

        return gpu
    from raymine.kernels.composite import cpu

    return cpu


class _Composite(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        density: Tensor,
        colour: Tensor,
        t_start: Tensor,
        t_end: Tensor,
        first: Tensor,
        count: Tensor,
        background: Tensor,
        stop: float,
        backend: dispatch.Backend,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows = (density, colour, t_start, t_end, first, count, background)
        with dispatch.kernel_lock:
            *out, after = _kernels(backend).forward(rows, stop)
        ctx.backend = backend
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*rows, out[1], out[3], after)
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *rows, opacity, weights, after = ctx.saved_tensors
        with dispatch.kernel_lock:
            to_density, to_colour, to_background = _kernels(ctx.backend).backward(
                tuple(rows), opacity, weights, after, grads
            )
        return to_density, to_colour, None, None, None, None, to_background, None, None

"""Volume rendering of packed samples: checks, dispatch and gradients (definition in `reference`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from raymine.kernels import checks, dispatch
from raymine.kernels.composite import reference
from raymine.kernels.packed import Samples


class Composited(NamedTuple):
    """Rendered rays: colour [R, 3] over the background, opacity [R], depth [R], and the weights [B] of the samples.

    depth: sum of weight * midpoint, in world units; it is not divided by the opacity.
    """

    colour: Tensor
    opacity: Tensor
    depth: Tensor
    weights: Tensor


def composite(density: Tensor, colour: Tensor, samples: Samples, background: Tensor, stop: float = 1e-4) -> Composited:
    """Render rays from the density [B] >= 0 and the colour [B, 3] of their samples over a background [R, 3].

    density: in 1 / world units, after activation. stop: samples where the transmittance is below it get weight 0.
    All four results are differentiable in density, colour and background.
    """
    n, rays, device = len(samples), samples.n_rays, density.device
    rows = (
        ("density", density, (n,)),
        ("colour", colour, (n, 3)),
        ("t_start", samples.t_start, (n,)),
        ("t_end", samples.t_end, (n,)),
        ("background", background, (rays, 3)),
    )
    kind = checks.floats(rows, device)
    checks.numbers(stop=stop)
    pack = checks.pack(samples.first, samples.count, n, device)
    backend = dispatch.choose("composite", device)
    inputs = (density, colour, samples.t_start, samples.t_end, *pack, background, stop)
    if kind is torch.float32 and backend != "reference":
        return Composited(*_Composite.apply(*inputs, backend))
    return Composited(*reference.composite(*inputs))


def visible(density: Tensor, samples: Samples, stop: float = 1e-4, faint: float = 0.0) -> Tensor:
    """[B] bool: samples with a transmittance of at least `stop` and an own opacity of at least `faint`.

    density [B]: in 1 / world units, after activation. Not differentiable.
    """
    n, device = len(samples), density.device
    rows = (("density", density, (n,)), ("t_start", samples.t_start, (n,)), ("t_end", samples.t_end, (n,)))
    kind = checks.floats(rows, device)
    checks.numbers(stop=stop, faint=faint)
    inputs = (density.detach(), samples.t_start, samples.t_end, *checks.pack(*samples.pack, n, device), stop, faint)
    backend = dispatch.choose("composite", device)
    if kind is torch.float32 and backend != "reference":
        with dispatch.kernel_lock:
            return dispatch.kernels("composite", backend).visible(*inputs)
    return reference.visible(*inputs)


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
            *out, after = dispatch.kernels("composite", backend).forward(rows, stop)
        ctx.backend = backend
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*rows, out[1], out[3], after)
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *rows, opacity, weights, after = ctx.saved_tensors
        with dispatch.kernel_lock:
            to_density, to_colour, to_background = dispatch.kernels("composite", ctx.backend).backward(
                tuple(rows), opacity, weights, after, grads
            )
        return to_density, to_colour, None, None, None, None, to_background, None, None

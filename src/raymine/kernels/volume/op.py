"""The parts of volume rendering of packed samples: checks, dispatch and gradients (definition in `reference`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks, dispatch, double_backward
from raymine.kernels.packed import Pack
from raymine.kernels.volume import reference


class Volume(NamedTuple):
    """Rays: colour [R, 3] over the background, opacity [R], depth [R], the sum of weight * midpoint.

    Samples, each [B]: weights, transmittances up to the sample, opacities of their intervals.
    """

    colour: Tensor
    opacity: Tensor
    depth: Tensor
    weights: Tensor
    transmittance: Tensor
    alphas: Tensor


def volume(
    density: Tensor, colour: Tensor, t_start: Tensor, t_end: Tensor, pack: Pack, background: Tensor | None = None
) -> Volume:
    """Render rays, with all intermediate results, from the density [B] and the colour [B, 3] of their samples.

    density: in 1 / units of t, after activation. t_start, t_end: [B]. background: [3] or [R, 3]; None is black. All
    results are differentiable, also twice, in density, colour and background. There is no early stop (see `composite`).
    """
    n, device = len(t_start) if t_start.ndim else 0, density.device
    rows = (
        ("density", density, (n,)),
        ("colour", colour, (n, 3)),
        ("t_start", t_start, (n,)),
        ("t_end", t_end, (n,)),
    )
    kind = checks.floats(rows, device)
    first, count = checks.pack(pack.first, pack.count, n, device)
    rays = len(first)
    if background is not None:
        if background.shape not in ((3,), (rays, 3)):
            raise ConfigError(f"`background` must have shape [3] or [{rays}, 3], got {list(background.shape)}.")
        checks.floats((("background", background, tuple(background.shape)),), device, kind)
    inputs = (density, colour, t_start, t_end, first, count, background)
    if kind is torch.float32 and dispatch.choose("volume", device) == "gpu":
        return Volume(*_Volume.apply(*inputs))
    return Volume(*reference.volume(*inputs))


class _Volume(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *rows: Any) -> tuple[Tensor, ...]:
        with dispatch.kernel_lock:
            found = dispatch.kernels("volume", "gpu").forward(rows)
        ctx.set_materialize_grads(False)
        *tensors, background = rows
        ctx.has_background = background is not None
        kept = (*tensors, background) if ctx.has_background else tuple(tensors)
        ctx.save_for_backward(*kept, found[1], *found[3:])
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *rows, opacity, weights, through, alphas = ctx.saved_tensors
        rows = rows if ctx.has_background else [*rows, None]
        if torch.is_grad_enabled():
            # The gradient is to be differentiated again.
            density, colour, t_start, t_end, first, count, background = rows
            own = (density, colour) if background is None else (density, colour, background)
            needed = [ctx.needs_input_grad[i] for i in (0, 1, 6)][: len(own)]

            def again(s: Tensor, c: Tensor, behind: Tensor | None = None) -> tuple[Tensor, ...]:
                return reference.volume(s, c, t_start, t_end, first, count, behind)

            found = double_backward.gradients_with_graph(again, own, needed, grads)
            return found[0], found[1], None, None, None, None, None if background is None else found[2]
        with dispatch.kernel_lock:
            to_density, to_colour, to_background = dispatch.kernels("volume", "gpu").backward(
                tuple(rows), opacity, weights, through, alphas, grads
            )
        return to_density, to_colour, None, None, None, None, to_background

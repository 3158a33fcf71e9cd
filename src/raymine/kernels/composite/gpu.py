"""Volume rendering in Triton: a program processes one ray after another, in chunks of samples.

`render` maps pre-activations to the colour, opacity and depth of a ray and stores nothing per sample. `forward` and
`backward` are the differentiable form; the formulas of the gradients are in `cpu`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from raymine.kernels._triton import programs
from raymine.kernels.gpu_bounds import ray_bounds
from raymine.kernels.judge.gpu import activate, four, limited


@triton.jit
def render(
    raw, t_start, t_end, first, seen, n_rays, background, stop, faint, colour, opacity, depth, CHUNK: tl.constexpr
):  # fmt: skip
    """raw [B, 4], background [3] -> colour [R, 3], opacity [R], depth [R].

    raw: colour and density pre-activations. seen [R]: how many samples of each ray, from its first, `raw` holds.
    Samples with an opacity below `faint` have weight 0. depth: the weighted mean distance, 0 where the opacity is 0.
    """
    n = tl.load(n_rays)
    lane = tl.arange(0, CHUNK)
    b0, b1, b2 = tl.load(background), tl.load(background + 1), tl.load(background + 2)
    for r in range(tl.program_id(0), n, tl.num_programs(0)):
        begin, samples = tl.load(first + r), tl.load(seen + r)
        optical_before = 0.0
        red = 0.0
        green = 0.0
        blue = 0.0
        total = 0.0
        distance = 0.0
        for s in range(0, samples, CHUNK):
            live = s + lane < samples
            i = begin + s + lane
            t0, t1 = tl.load(t_start + i, mask=live, other=0.0), tl.load(t_end + i, mask=live, other=0.0)
            c0, c1, c2, density = four(raw, i, live, CHUNK)
            optical = limited(activate(density) * (t1 - t0))
            through = tl.exp(-(optical_before + tl.cumsum(optical, 0) - optical))
            alpha = 1 - tl.exp(-optical)
            weight = tl.where((through < stop) | (alpha < faint), 0.0, through * alpha)
            red += tl.sum(weight * tl.sigmoid(c0))
            green += tl.sum(weight * tl.sigmoid(c1))
            blue += tl.sum(weight * tl.sigmoid(c2))
            total += tl.sum(weight)
            distance += tl.sum(weight * (t0 + t1) * 0.5)
            optical_before += tl.sum(optical)
        tl.store(colour + r * 3, red + (1 - total) * b0)
        tl.store(colour + r * 3 + 1, green + (1 - total) * b1)
        tl.store(colour + r * 3 + 2, blue + (1 - total) * b2)
        tl.store(opacity + r, total)
        tl.store(depth + r, distance / tl.maximum(total, 1e-6))


@triton.jit(do_not_specialize=["n", "total_samples"])
def _forward(
    density, colour, t_start, t_end, first, count, background, stop, n, total_samples,
    out_colour, opacity, depth, weights, after, CHUNK: tl.constexpr,
):  # fmt: skip
    """after [B]: transmittance after each sample; -1 for a sample behind the early stop."""
    lane = tl.arange(0, CHUNK)
    for r in range(tl.program_id(0), n, tl.num_programs(0)):
        begin, samples = ray_bounds(first, count, r, total_samples)
        optical_before = 0.0
        red = 0.0
        green = 0.0
        blue = 0.0
        total = 0.0
        distance = 0.0
        for s in range(0, samples, CHUNK):
            live = s + lane < samples
            i = begin + s + lane
            t0, t1 = tl.load(t_start + i, mask=live, other=0.0), tl.load(t_end + i, mask=live, other=0.0)
            optical = limited(tl.load(density + i, mask=live, other=0.0) * (t1 - t0))
            upto = optical_before + tl.cumsum(optical, 0)
            through = tl.exp(-(upto - optical))
            hidden = through < stop
            weight = tl.where(hidden | ~live, 0.0, through * (1 - tl.exp(-optical)))
            tl.store(weights + i, weight, mask=live)
            tl.store(after + i, tl.where(hidden, -1.0, tl.exp(-upto)), mask=live)
            red += tl.sum(weight * tl.load(colour + i * 3, mask=live, other=0.0))
            green += tl.sum(weight * tl.load(colour + i * 3 + 1, mask=live, other=0.0))
            blue += tl.sum(weight * tl.load(colour + i * 3 + 2, mask=live, other=0.0))
            total += tl.sum(weight)
            distance += tl.sum(weight * (t0 + t1) * 0.5)
            optical_before += tl.sum(optical)
        tl.store(opacity + r, total)
        tl.store(depth + r, distance)
        tl.store(out_colour + r * 3, red + (1 - total) * tl.load(background + r * 3))
        tl.store(out_colour + r * 3 + 1, green + (1 - total) * tl.load(background + r * 3 + 1))
        tl.store(out_colour + r * 3 + 2, blue + (1 - total) * tl.load(background + r * 3 + 2))


@triton.jit(do_not_specialize=["n", "total_samples"])
def _backward(
    colour, t_start, t_end, first, count, background, opacity, weights, after, g_colour, g_opacity, g_depth, g_weights,
    n, total_samples, to_density, to_colour, to_background, CHUNK: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, CHUNK)
    for r in range(tl.program_id(0), n, tl.num_programs(0)):
        begin, samples = ray_bounds(first, count, r, total_samples)
        g0, g1, g2 = tl.load(g_colour + r * 3), tl.load(g_colour + r * 3 + 1), tl.load(g_colour + r * 3 + 2)
        b0, b1, b2 = tl.load(background + r * 3), tl.load(background + r * 3 + 1), tl.load(background + r * 3 + 2)
        rest = tl.load(g_opacity + r) - (g0 * b0 + g1 * b1 + g2 * b2)
        far = tl.load(g_depth + r)
        behind = 0.0
        chunks = tl.cdiv(samples, CHUNK)
        # Back to front, so that `behind` is the sum of w_j v_j over the chunks behind this one.
        for c in range(0, chunks):
            s = (chunks - 1 - c) * CHUNK
            live = s + lane < samples
            i = begin + s + lane
            t0, t1 = tl.load(t_start + i, mask=live, other=0.0), tl.load(t_end + i, mask=live, other=0.0)
            weight = tl.load(weights + i, mask=live, other=0.0)
            left = tl.load(after + i, mask=live, other=-1.0)
            v = g0 * tl.load(colour + i * 3, mask=live, other=0.0)
            v += g1 * tl.load(colour + i * 3 + 1, mask=live, other=0.0)
            v += g2 * tl.load(colour + i * 3 + 2, mask=live, other=0.0)
            v += rest + far * (t0 + t1) * 0.5 + tl.load(g_weights + i, mask=live, other=0.0)
            part = weight * v
            later = behind + tl.cumsum(part, 0, reverse=True) - part
            tl.store(to_density + i, tl.where(left < 0, 0.0, (t1 - t0) * (left * v - later)), mask=live)
            tl.store(to_colour + i * 3, weight * g0, mask=live)
            tl.store(to_colour + i * 3 + 1, weight * g1, mask=live)
            tl.store(to_colour + i * 3 + 2, weight * g2, mask=live)
            behind += tl.sum(part)
        open_ = 1 - tl.load(opacity + r)
        tl.store(to_background + r * 3, open_ * g0)
        tl.store(to_background + r * 3 + 1, open_ * g1)
        tl.store(to_background + r * 3 + 2, open_ * g2)


@triton.jit(do_not_specialize=["n", "total_samples"])
def _visible(density, t_start, t_end, first, count, stop, faint, n, total_samples, keep, CHUNK: tl.constexpr):
    lane = tl.arange(0, CHUNK)
    for r in range(tl.program_id(0), n, tl.num_programs(0)):
        begin, samples = ray_bounds(first, count, r, total_samples)
        optical_before = 0.0
        for s in range(0, samples, CHUNK):
            live = s + lane < samples
            i = begin + s + lane
            length = tl.load(t_end + i, mask=live, other=0.0) - tl.load(t_start + i, mask=live, other=0.0)
            optical = limited(tl.load(density + i, mask=live, other=0.0) * length)
            through = tl.exp(-(optical_before + tl.cumsum(optical, 0) - optical))
            seen = (through >= stop) & (1 - tl.exp(-optical) >= faint)
            tl.store(keep + i, seen.to(tl.uint8), mask=live)
            optical_before += tl.sum(optical)


Rows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""density, colour, t_start, t_end, first, count, background."""


def forward(rows: Rows, stop: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `cpu.forward`."""
    density, rays = rows[0], rows[4].shape[0]
    colour = density.new_empty(rays, 3)
    opacity, depth = density.new_empty(rays), density.new_empty(rays)
    # Zeros, because a wrong pack may leave samples without a ray.
    weights, after = torch.zeros_like(density), torch.zeros_like(density)
    if rays:
        inputs = (row.detach().contiguous() for row in rows)
        _forward[(programs(density.device, 32),)](
            *inputs, stop, rays, len(density), colour, opacity, depth, weights, after, CHUNK=32, num_warps=1
        )
    return colour, opacity, depth, weights, after


def backward(
    rows: Rows, opacity: Tensor, weights: Tensor, after: Tensor, grads: tuple[Tensor | None, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """As `cpu.backward`."""
    density, colour, *_, background = rows
    rays = len(background)
    out = torch.zeros_like(density), torch.zeros_like(colour, memory_format=torch.contiguous_format)
    to_background = torch.empty_like(background, memory_format=torch.contiguous_format)
    shapes = (background, opacity, opacity, weights)
    given = [torch.zeros_like(like) if g is None else g for g, like in zip(grads, shapes, strict=True)]
    if rays:
        inputs = (part.detach().contiguous() for part in (*rows[1:], opacity, weights, after, *given))
        _backward[(programs(density.device, 32),)](
            *inputs, rays, len(density), *out, to_background, CHUNK=32, num_warps=1
        )
    return (*out, to_background)


def visible(
    density: Tensor, t_start: Tensor, t_end: Tensor, first: Tensor, count: Tensor, stop: float, faint: float
) -> Tensor:
    """As `reference.visible`."""
    keep = torch.zeros(len(density), dtype=torch.uint8, device=density.device)
    if len(first):
        inputs = (part.detach().contiguous() for part in (density, t_start, t_end, first, count))
        _visible[(programs(density.device, 32),)](
            *inputs, stop, faint, len(first), len(density), keep, CHUNK=32, num_warps=1
        )
    return keep.bool()

"""The op `volume` in Triton: a program processes one ray after another, in chunks of samples.

Gradients, with v_i the gradient of w_i through all results that it enters, and gT_i, ga_i those of T_i and a_i:

    dL/do_i = (T_i - w_i) v_i + (1 - a_i) ga_i - sum over j > i of (w_j v_j + T_j gT_j)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from raymine.kernels._triton import programs
from raymine.kernels.gpu_bounds import ray_bounds

LARGEST = tl.constexpr(torch.finfo(torch.float32).max)
CHUNK = 32
"""Samples of a ray that are processed at once."""


@triton.jit
def _optical(density, t_start, t_end, i, live):
    """Optical depths o_i; 0 where not live."""
    dense = tl.load(density + i, mask=live, other=0.0)
    dense = tl.minimum(dense, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return dense * (tl.load(t_end + i, mask=live, other=0.0) - tl.load(t_start + i, mask=live, other=0.0))


@triton.jit
def _alpha(o):
    """1 - exp(-o). Near 0 its series, because the difference would lose the digits of small opacities."""
    small = tl.abs(o) < 0.3
    x = tl.where(small, o, 0.0)
    series = 1 - x / 3 * (1 - x / 4 * (1 - x / 5 * (1 - x / 6 * (1 - x / 7 * (1 - x / 8 * (1 - x / 9))))))
    return tl.where(small, x * (1 - x / 2 * series), 1 - tl.exp(-o))


@triton.jit(do_not_specialize=["background_step", "n", "total_samples"])
def _forward(
    density, colour, t_start, t_end, first, count, background, background_step, n, total_samples,
    out_colour, opacity, depth, weights, through, alphas, BACKGROUND: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """background_step: 3 if every ray has a background of its own, else 0."""
    lane = tl.arange(0, CHUNK)
    for r in range(tl.program_id(0), n, tl.num_programs(0)):
        begin, samples = ray_bounds(first, count, r, total_samples)
        carry = 0.0
        red = 0.0
        green = 0.0
        blue = 0.0
        total = 0.0
        distance = 0.0
        for s in range(0, samples, CHUNK):
            live = s + lane < samples
            i = begin + s + lane
            # The sum of the depths before a sample, not a difference of sums: so T is exactly 0 behind an opaque one.
            before = carry + tl.cumsum(_optical(density, t_start, t_end, i - 1, live & (s + lane > 0)), 0)
            carry = tl.sum(tl.where(lane == CHUNK - 1, before, 0.0))
            transmittance = tl.exp(-before)
            alpha = _alpha(_optical(density, t_start, t_end, i, live))
            weight = tl.where(live, transmittance * alpha, 0.0)
            tl.store(weights + i, weight, mask=live)
            tl.store(through + i, transmittance, mask=live)
            tl.store(alphas + i, alpha, mask=live)
            middle = tl.load(t_start + i, mask=live, other=0.0) + tl.load(t_end + i, mask=live, other=0.0)
            red += tl.sum(weight * tl.load(colour + i * 3, mask=live, other=0.0))
            green += tl.sum(weight * tl.load(colour + i * 3 + 1, mask=live, other=0.0))
            blue += tl.sum(weight * tl.load(colour + i * 3 + 2, mask=live, other=0.0))
            total += tl.sum(weight)
            distance += tl.sum(weight * middle * 0.5)
        if BACKGROUND:
            at = background + r * background_step
            red += (1 - total) * tl.load(at)
            green += (1 - total) * tl.load(at + 1)
            blue += (1 - total) * tl.load(at + 2)
        tl.store(out_colour + r * 3, red)
        tl.store(out_colour + r * 3 + 1, green)
        tl.store(out_colour + r * 3 + 2, blue)
        tl.store(opacity + r, total)
        tl.store(depth + r, distance)


@triton.jit(do_not_specialize=["background_step", "n", "total_samples"])
def _backward(
    density, colour, t_start, t_end, first, count, background, background_step, opacity, weights, through, alphas,
    g_colour, g_opacity, g_depth, g_weights, g_through, g_alphas, n, total_samples, to_density, to_colour,
    to_background, BACKGROUND: tl.constexpr, RAYS: tl.constexpr, SAMPLES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """RAYS: whether g_opacity and g_depth are given. SAMPLES: whether g_weights, g_through and g_alphas are."""
    lane = tl.arange(0, CHUNK)
    for r in range(tl.program_id(0), n, tl.num_programs(0)):
        begin, samples = ray_bounds(first, count, r, total_samples)
        g0, g1, g2 = tl.load(g_colour + r * 3), tl.load(g_colour + r * 3 + 1), tl.load(g_colour + r * 3 + 2)
        rest = 0.0
        far = 0.0
        if RAYS:
            rest += tl.load(g_opacity + r)
            far += tl.load(g_depth + r)
        if BACKGROUND:
            at = background + r * background_step
            rest -= g0 * tl.load(at) + g1 * tl.load(at + 1) + g2 * tl.load(at + 2)
            left = 1 - tl.load(opacity + r)
            tl.store(to_background + r * 3, left * g0)
            tl.store(to_background + r * 3 + 1, left * g1)
            tl.store(to_background + r * 3 + 2, left * g2)
        behind = 0.0
        chunks = tl.cdiv(samples, CHUNK)
        # Back to front, so that `behind` is the sum over the chunks behind this one.
        for c in range(0, chunks):
            s = (chunks - 1 - c) * CHUNK
            live = s + lane < samples
            i = begin + s + lane
            t0, t1 = tl.load(t_start + i, mask=live, other=0.0), tl.load(t_end + i, mask=live, other=0.0)
            weight = tl.load(weights + i, mask=live, other=0.0)
            transmittance = tl.load(through + i, mask=live, other=0.0)
            v = rest + far * (t0 + t1) * 0.5
            v += g0 * tl.load(colour + i * 3, mask=live, other=0.0)
            v += g1 * tl.load(colour + i * 3 + 1, mask=live, other=0.0)
            v += g2 * tl.load(colour + i * 3 + 2, mask=live, other=0.0)
            own = 0.0
            more = 0.0
            if SAMPLES:
                v += tl.load(g_weights + i, mask=live, other=0.0)
                own += tl.load(g_alphas + i, mask=live, other=0.0) * (1 - tl.load(alphas + i, mask=live, other=1.0))
                more += transmittance * tl.load(g_through + i, mask=live, other=0.0)
            part = tl.where(live, weight * v + more, 0.0)
            later = behind + tl.cumsum(part, 0, reverse=True) - part
            # The gradient does not pass the clamp of an infinite density.
            dense = tl.load(density + i, mask=live, other=0.0)
            to_optical = tl.where(dense > LARGEST, 0.0, (transmittance - weight) * v + own - later)
            tl.store(to_density + i, (t1 - t0) * to_optical, mask=live)
            tl.store(to_colour + i * 3, weight * g0, mask=live)
            tl.store(to_colour + i * 3 + 1, weight * g1, mask=live)
            tl.store(to_colour + i * 3 + 2, weight * g2, mask=live)
            behind += tl.sum(part)


Rows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""density, colour, t_start, t_end, first, count, background."""

Found = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""colour, opacity, depth, weights, transmittances, opacities of samples."""


def forward(rows: Rows) -> Found:
    """As `reference.volume`."""
    density, first, background = rows[0], rows[4], rows[6]
    rays, n = len(first), len(density)
    per_ray = density.new_empty(rays * 5)
    colour, opacity, depth = per_ray[: rays * 3].view(rays, 3), per_ray[rays * 3 : rays * 4], per_ray[rays * 4 :]
    # Zeros, because a wrong pack may leave samples without a ray.
    weights, through, alphas = density.new_zeros(3, n).unbind(0)
    if rays:
        inputs = [row.detach().contiguous() for row in rows[:6]]
        _forward[(programs(density.device, 32),)](
            *inputs, *_background(background, density), rays, n, colour, opacity, depth, weights, through, alphas,
            BACKGROUND=background is not None, CHUNK=CHUNK, num_warps=1,
        )  # fmt: skip
    return colour, opacity, depth, weights, through, alphas


def backward(
    rows: Rows, opacity: Tensor, weights: Tensor, through: Tensor, alphas: Tensor, grads: tuple[Tensor | None, ...]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of density [B], colour [B, 3] and background from those of the six results; None counts as 0."""
    density, first, background = rows[0], rows[4], rows[6]
    rays, n = len(first), len(density)
    both = density.new_zeros(n * 4)
    to_density, to_colour = both[:n], both[n:].view(n, 3)
    to_background = density.new_zeros(rays, 3) if background is not None else None
    with_rays, with_samples = any(g is not None for g in grads[1:3]), any(g is not None for g in grads[3:])
    shapes = ((rays, 3), *[(rays,)] * 2, *[(n,)] * 3)
    wanted = (True, *[with_rays] * 2, *[with_samples] * 3)
    given = [
        (density.new_zeros(shape) if g is None else g.contiguous()) if want else density
        for g, shape, want in zip(grads, shapes, wanted, strict=True)
    ]
    if rays:
        inputs = [row.detach().contiguous() for row in rows[:6]]
        _backward[(programs(density.device, 32),)](
            *inputs, *_background(background, density), opacity, weights, through, alphas, *given, rays, n, to_density,
            to_colour, density if to_background is None else to_background, BACKGROUND=background is not None,
            RAYS=with_rays, SAMPLES=with_samples, CHUNK=CHUNK, num_warps=1,
        )  # fmt: skip
    if to_background is not None and background is not None and background.ndim == 1:
        to_background = to_background.sum(0)
    return to_density, to_colour, to_background


def _background(background: Tensor | None, unused: Tensor) -> tuple[Tensor, int]:
    """The background and the distance between the backgrounds of two rays; a placeholder if there is none."""
    if background is None:
        return unused, 0
    return background.detach().contiguous(), 3 if background.ndim == 2 else 0

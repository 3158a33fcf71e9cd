"""Loss of each ray and gradient of each sample in Triton: a program processes one ray after another, in two passes.

The kernel leaves out the factor 1 / (3 * sum of ray weights) of the gradients; the fused step applies it in Adam. So
gradients have the magnitude of a pixel's error and fit in float16.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from raymine.kernels._triton import programs
from raymine.kernels.activations import CAP
from raymine.kernels.gpu_bounds import clamped

_CAP: tl.constexpr = tl.constexpr(CAP)


@triton.jit
def _slope(error, delta):
    """Derivative of the loss of one channel with respect to its error; infinite `delta`: of the square."""
    huber = tl.minimum(tl.maximum(error, -delta), delta)
    return tl.where(delta < float("inf"), huber, 2 * error)


@triton.jit
def _value(error, delta):
    """Loss of one channel: the square, or Huber's loss with threshold `delta` if that is finite."""
    size = tl.abs(error)
    huber = tl.where(size <= delta, 0.5 * error * error, delta * (size - 0.5 * delta))
    return tl.where(delta < float("inf"), huber, error * error)


@triton.jit
def activate(raw):
    """Density from its pre-activation; NaN stays NaN."""
    return tl.exp(tl.minimum(raw - 1.0, _CAP, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def limited(optical):
    """Optical depths, clamped to at most 20; NaN stays NaN.

    1 - exp(-20) is 1 in float32. The clamp keeps running sums small, so that they keep the digits of the small depths.
    """
    return tl.minimum(optical, 20.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def four(raw, i, live, CHUNK: tl.constexpr):
    """The four columns of raw [B, 4] for samples i [CHUNK], in one vector load; 0 where not live."""
    rows = tl.load(raw + i[:, None] * 4 + tl.arange(0, 4)[None, :], mask=live[:, None], other=0.0)
    even, odd = tl.split(tl.reshape(rows, [CHUNK, 2, 2]))
    c0, c2 = tl.split(even)
    c1, c3 = tl.split(odd)
    return c0, c1, c2, c3


@triton.jit
def _on_curve(start, end):
    """The middle and the length of intervals of distances on the curve t / (1 + t)."""
    near, far = start / (1.0 + start), end / (1.0 + end)
    return (near + far) * 0.5, far - near


@triton.jit
def judge(
    raw, t_start, t_end, first, seen, count, wanted, n_rays, delta, stop, faint, distortion, fade,
    gradient, size, sums, rays, PRUNE: tl.constexpr, ALL: tl.constexpr, PER_RAY: tl.constexpr, SPREAD: tl.constexpr,
    FADE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """raw [B, 4]: colour and density pre-activations. wanted [R, 8]: colour, background, weight, time (unused).

    count [R]: samples of each ray. seen [R]: how many of them, from the first, `raw` holds. The others are invisible:
    their size becomes 0 and, with ALL, their gradient too.

    gradient [B, 4]: of the pre-activations. size [B]: its norm, 0 where not finite; with PRUNE, 1 for a visible sample
    and 0 otherwise. sums [programs, 8]: size, size^2, loss, weighted squared error and weight, summed over the rays of
    each program. rays [R, 2], with PER_RAY: weighted loss and squared error of each ray, summed over channels.
    SPREAD: add the distortion, times `distortion`, to the loss. FADE: gradients grow from 0 at the camera to `fade`.
    """
    n = tl.load(n_rays)
    lane = tl.arange(0, CHUNK)
    sizes = tl.zeros([CHUNK], tl.float32)
    squares = tl.zeros([CHUNK], tl.float32)
    total_loss = 0.0
    total_error = 0.0
    total_weight = 0.0
    for r in range(tl.program_id(0), n, tl.num_programs(0)):
        begin, samples, marched = tl.load(first + r), tl.load(seen + r), tl.load(count + r)
        row = wanted + r * 8
        b0, b1, b2 = tl.load(row + 3), tl.load(row + 4), tl.load(row + 5)
        optical_before = 0.0
        red = 0.0
        green = 0.0
        blue = 0.0
        opacity = 0.0
        moment = 0.0
        spread = 0.0
        for s in range(0, samples, CHUNK):
            live = s + lane < samples
            i = begin + s + lane
            start, end = tl.load(t_start + i, mask=live, other=0.0), tl.load(t_end + i, mask=live, other=0.0)
            length = end - start
            c0, c1, c2, density = four(raw, i, live, CHUNK)
            optical = limited(activate(density) * length)
            upto = optical_before + tl.cumsum(optical, 0)
            through = tl.exp(-(upto - optical))
            weight = tl.where(through < stop, 0.0, through * (1 - tl.exp(-optical)))
            red += tl.sum(weight * tl.sigmoid(c0))
            green += tl.sum(weight * tl.sigmoid(c1))
            blue += tl.sum(weight * tl.sigmoid(c2))
            if SPREAD:
                weight = tl.where(live, weight, 0.0)
                at, long = _on_curve(start, end)
                here = weight * at
                in_front = opacity + tl.cumsum(weight, 0) - weight
                moment_in_front = moment + tl.cumsum(here, 0) - here
                spread += tl.sum(2 * weight * (at * in_front - moment_in_front) + weight * weight * long / 3.0)
                moment += tl.sum(here)
            opacity += tl.sum(weight)
            optical_before += tl.sum(optical)
        share = tl.load(row + 6)
        e0 = red + (1 - opacity) * b0 - tl.load(row)
        e1 = green + (1 - opacity) * b1 - tl.load(row + 1)
        e2 = blue + (1 - opacity) * b2 - tl.load(row + 2)
        error = e0 * e0 + e1 * e1 + e2 * e2
        loss = share * (_value(e0, delta) + _value(e1, delta) + _value(e2, delta))
        factor = 3.0 * share * distortion
        if SPREAD:
            loss += factor * spread
        total_weight += share
        total_error += share * error
        total_loss += loss
        if PER_RAY:
            tl.store(rays + r * 2, loss)
            tl.store(rays + r * 2 + 1, error)
        g0, g1, g2 = share * _slope(e0, delta), share * _slope(e1, delta), share * _slope(e2, delta)
        rest = g0 * b0 + g1 * b1 + g2 * b2
        # The sum of w v over all samples. The loop below subtracts the samples up to each one.
        behind = g0 * red + g1 * green + g2 * blue - rest * opacity
        if SPREAD:
            # The sum of w_i times the derivative of the distortion, which is a square in the weights.
            behind += 2 * factor * spread
        passed = 0.0
        passed_moment = 0.0
        optical_before = 0.0
        for s in range(0, samples, CHUNK):
            live = s + lane < samples
            i = begin + s + lane
            start, end = tl.load(t_start + i, mask=live, other=0.0), tl.load(t_end + i, mask=live, other=0.0)
            length = end - start
            c0, c1, c2, density = four(raw, i, live, CHUNK)
            optical = limited(activate(density) * length)
            upto = optical_before + tl.cumsum(optical, 0)
            through, after = tl.exp(-(upto - optical)), tl.exp(-upto)
            alpha = 1 - tl.exp(-optical)
            sees = live & ~(through < stop)
            weight = tl.where(sees, through * alpha, 0.0)
            c0, c1, c2 = tl.sigmoid(c0), tl.sigmoid(c1), tl.sigmoid(c2)
            v = g0 * c0 + g1 * c1 + g2 * c2 - rest
            if SPREAD:
                at, long = _on_curve(start, end)
                here = weight * at
                # What lies in front of a sample, less what lies behind it.
                front = 2 * (passed + tl.cumsum(weight, 0)) - weight - opacity
                front_moment = 2 * (passed_moment + tl.cumsum(here, 0)) - here - moment
                v += 2 * factor * (at * front - front_moment + weight * long / 3.0)
                passed += tl.sum(weight)
                passed_moment += tl.sum(here)
            part = tl.where(sees, weight * v, 0.0)
            upto_part = tl.cumsum(part, 0)
            q0, q1, q2 = g0 * weight * c0 * (1 - c0), g1 * weight * c1 * (1 - c1), g2 * weight * c2 * (1 - c2)
            q3 = tl.where(sees, optical * (after * v - (behind - upto_part)), 0.0)
            if FADE:
                near = tl.minimum((start + end) * 0.5 / fade, 1.0)
                near = near * near
                q0, q1, q2, q3 = q0 * near, q1 * near, q2 * near, q3 * near
            rows = tl.reshape(tl.join(tl.join(q0, q2), tl.join(q1, q3)), [CHUNK, 4])
            tl.store(gradient + i[:, None] * 4 + tl.arange(0, 4)[None, :], rows, mask=live[:, None])
            square = q0 * q0 + q1 * q1 + q2 * q2 + q3 * q3
            norm = tl.where(square < float("inf"), tl.sqrt(square), 0.0)
            if PRUNE:
                norm = tl.where(sees & (alpha >= faint), 1.0, 0.0)
            norm = tl.where(live, norm, 0.0)
            tl.store(size + i, norm, mask=live)
            sizes += norm
            squares += norm * norm
            behind -= tl.sum(part)
            optical_before += tl.sum(optical)
        for s in range(samples, marched, CHUNK):
            rest_of = s + lane < marched
            tl.store(size + begin + s + lane, tl.zeros([CHUNK], tl.float32), mask=rest_of)
            if ALL:
                for c in tl.static_range(4):
                    tl.store(gradient + (begin + s + lane) * 4 + c, tl.zeros([CHUNK], tl.float32), mask=rest_of)
    out = sums + tl.program_id(0) * 8
    tl.store(out, tl.sum(sizes))
    tl.store(out + 1, tl.sum(squares))
    tl.store(out + 2, total_loss)
    tl.store(out + 3, total_error)
    tl.store(out + 4, total_weight)


def judge_packed(
    colour: Tensor, density: Tensor, t_start: Tensor, t_end: Tensor, first: Tensor, count: Tensor, background: Tensor,
    target: Tensor, weight: Tensor, delta: float, stop: float, distortion: float = 0.0, fade: float = 0.0,
    divisor: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As `reference.judge`."""
    n, device = len(count), density.device
    raw = torch.cat((colour, density[:, None]), 1)
    wanted = torch.cat((target, background, weight[:, None], torch.zeros_like(weight)[:, None]), 1)
    # Zeros, because a wrong pack may leave samples without a ray.
    gradient, size, rays = torch.zeros_like(raw), torch.zeros_like(density), torch.empty(n, 2, device=device)
    begin, counts = (part.int() for part in clamped(first, count, len(density)))
    launched = programs(device, 32)
    judge[(launched,)](
        raw, t_start.contiguous(), t_end.contiguous(), begin, counts, counts, wanted,
        torch.full((1,), n, dtype=torch.int32, device=device), delta, stop, 0.0, distortion, fade, gradient, size,
        torch.empty(launched, 8, device=device), rays, PRUNE=False, ALL=False, PER_RAY=True, SPREAD=distortion > 0,
        FADE=fade > 0, CHUNK=32, num_warps=1,
    )  # fmt: skip
    share = 1 / (3 * (weight.sum() if divisor is None else divisor).clamp_min(1))
    return gradient * share, size * share, rays[:, 0] * share, rays[:, 1] / 3

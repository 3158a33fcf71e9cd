"""Volume rendering in Triton, from pre-activations to a ray's colour, opacity and depth: one ray after another."""

from __future__ import annotations

import triton
import triton.language as tl

from raymine.kernels.judge.reference import CAP

_CAP: tl.constexpr = tl.constexpr(CAP)


@triton.jit
def render(
    raw, t_start, t_end, first, seen, n_rays, background, stop, faint, colour, opacity, depth, CHUNK: tl.constexpr
):  # fmt: skip
    """raw [B, 4]: colour and density pre-activations; background [3]; seen [R]: samples of
    each ray that have been asked for. -> colour [R, 3], opacity [R], depth [R].

    Samples of an opacity below `faint` are left out; depth is the mean distance of what was hit, 0 where nothing was.
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
            density = tl.exp(tl.minimum(tl.load(raw + i * 4 + 3, mask=live, other=0.0) - 1.0, _CAP))
            optical = density * (t1 - t0)
            through = tl.exp(-(optical_before + tl.cumsum(optical, 0) - optical))
            alpha = 1 - tl.exp(-optical)
            weight = tl.where((through < stop) | (alpha < faint), 0.0, through * alpha)
            red += tl.sum(weight * tl.sigmoid(tl.load(raw + i * 4, mask=live, other=0.0)))
            green += tl.sum(weight * tl.sigmoid(tl.load(raw + i * 4 + 1, mask=live, other=0.0)))
            blue += tl.sum(weight * tl.sigmoid(tl.load(raw + i * 4 + 2, mask=live, other=0.0)))
            total += tl.sum(weight)
            distance += tl.sum(weight * (t0 + t1) * 0.5)
            optical_before += tl.sum(optical)
        tl.store(colour + r * 3, red + (1 - total) * b0)
        tl.store(colour + r * 3 + 1, green + (1 - total) * b1)
        tl.store(colour + r * 3 + 2, blue + (1 - total) * b2)
        tl.store(opacity + r, total)
        tl.store(depth + r, distance / tl.maximum(total, 1e-6))

"""The rays of a step in Triton: draws pixels of images on the device, and computes their rays and target colours."""

from __future__ import annotations

import triton
import triton.language as tl

from raymine.kernels.ngp_step import inputs
from raymine.kernels.ngp_step.gpu_lens import through_lens
from raymine.kernels.ngp_step.gpu_pixels import draw_by_score, draw_evenly
from raymine.kernels.philox.gpu import uniform
from raymine.kernels.philox.op import Stream

_BACKGROUND: tl.constexpr = tl.constexpr(int(Stream.BACKGROUND))
_JITTER: tl.constexpr = tl.constexpr(int(Stream.JITTER))
_C0, _C1, _C2 = tl.constexpr(inputs.C0), tl.constexpr(inputs.C1), tl.constexpr(inputs.C2)
_C2_0, _C3_3, _C3_2 = tl.constexpr(inputs.C2_0), tl.constexpr(inputs.C3_3), tl.constexpr(inputs.C3_2)
_C3_1, _C3_0 = tl.constexpr(inputs.C3_1), tl.constexpr(inputs.C3_0)


@triton.jit
def put_harmonics(out, x, y, z, live):
    """out [n, 16] float16: `inputs.harmonics` of directions x, y, z [n]."""
    # Constants are on the right of each product: on the left, the interpreter would not make a tensor of the product.
    xx, yy, zz = x * x, y * y, z * z
    tl.store(out, (x * 0 + _C0).to(tl.float16), mask=live)
    tl.store(out + 1, (y * -_C1).to(tl.float16), mask=live)
    tl.store(out + 2, (z * _C1).to(tl.float16), mask=live)
    tl.store(out + 3, (x * -_C1).to(tl.float16), mask=live)
    tl.store(out + 4, (x * y * _C2).to(tl.float16), mask=live)
    tl.store(out + 5, (y * z * -_C2).to(tl.float16), mask=live)
    tl.store(out + 6, ((3 * zz - 1) * _C2_0).to(tl.float16), mask=live)
    tl.store(out + 7, (x * z * -_C2).to(tl.float16), mask=live)
    tl.store(out + 8, ((xx - yy) * (0.5 * _C2)).to(tl.float16), mask=live)
    tl.store(out + 9, (y * (yy - 3 * xx) * _C3_3).to(tl.float16), mask=live)
    tl.store(out + 10, (x * y * z * _C3_2).to(tl.float16), mask=live)
    tl.store(out + 11, (y * (1 - 5 * zz) * _C3_1).to(tl.float16), mask=live)
    tl.store(out + 12, (z * (5 * zz - 3) * _C3_0).to(tl.float16), mask=live)
    tl.store(out + 13, (x * (1 - 5 * zz) * _C3_1).to(tl.float16), mask=live)
    tl.store(out + 14, (z * (xx - yy) * (0.5 * _C3_2)).to(tl.float16), mask=live)
    tl.store(out + 15, (x * (3 * yy - xx) * _C3_3).to(tl.float16), mask=live)


@triton.jit(do_not_specialize=["images", "opencv_steps", "fisheye_steps", "side", "cells", "halvings"])
def draw(
    n_rays, seed, step, images, opencv_steps, fisheye_steps, pixels, masks, places, rig, background,
    coverage, running, boxes, weights, firsts, side, cells, halvings, rays, harmonics, wanted, jitter, drawn,
    RANDOM: tl.constexpr, MASKED: tl.constexpr, OPENCV: tl.constexpr, FISHEYE: tl.constexpr, SCORED: tl.constexpr,
    WEIGHED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Draw the same pixels as `pixels.PixelSampler`, and the same backgrounds as `pixels.draw_backgrounds`.

    pixels [P] int32: RGBA of all images, straight alpha. masks [P] uint8: 0 where a pixel is to be ignored.
    places [images, 3] int64: first pixel, height, width. rig [19 or more, images]: pose (12), near, far, time, then the
    lens as in `through_lens`. background [3]: used unless RANDOM. coverage to halvings: see `draw_by_score`; used if
    SCORED. WEIGHED: rays get the weight of their cell, which compensates for its probability.

    Writes rays [R, 8]: origin, direction, near, far; harmonics [R, 16]; wanted [R, 8]: colour, background, weight, time
    (0 in a static scene); jitter [R] in 0..1; and drawn [R] int32: the image of each ray.
    """
    n = tl.load(n_rays)
    if tl.program_id(0) * BLOCK >= n:
        return
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = r < n
    now = tl.load(step)
    s0, s1 = tl.load(seed), tl.load(seed + 1)
    if SCORED:
        image, y, x, weight = draw_by_score(
            s0, s1, now, r, n, images, places, live, coverage, running, boxes, weights, firsts, side, cells, halvings,
            WEIGHED,
        )  # fmt: skip
    else:
        image, y, x = draw_evenly(s0, s1, now, r, n, images, places, live)
        weight = x * 0.0 + 1.0
    place = places + image * 3
    width = tl.load(place + 2, mask=live, other=1).to(tl.int32)
    at = tl.load(place, mask=live, other=0) + y * width + x
    rgba = tl.load(pixels + at, mask=live, other=0)
    alpha = ((rgba >> 24) & 255).to(tl.float32) / 255.0
    column = rig + image
    u, v, w = through_lens(
        column + 15 * images, images, x.to(tl.float32) + 0.5, y.to(tl.float32) + 0.5, live, opencv_steps, fisheye_steps,
        OPENCV, FISHEYE,
    )  # fmt: skip
    out = rays + r * 8
    dx = tl.load(column, mask=live) * u + tl.load(column + images, mask=live) * v
    dx += tl.load(column + 2 * images, mask=live) * w
    dy = tl.load(column + 4 * images, mask=live) * u + tl.load(column + 5 * images, mask=live) * v
    dy += tl.load(column + 6 * images, mask=live) * w
    dz = tl.load(column + 8 * images, mask=live) * u + tl.load(column + 9 * images, mask=live) * v
    dz += tl.load(column + 10 * images, mask=live) * w
    tl.store(out, tl.load(column + 3 * images, mask=live), mask=live)
    tl.store(out + 1, tl.load(column + 7 * images, mask=live), mask=live)
    tl.store(out + 2, tl.load(column + 11 * images, mask=live), mask=live)
    tl.store(out + 3, dx, mask=live)
    tl.store(out + 4, dy, mask=live)
    tl.store(out + 5, dz, mask=live)
    tl.store(out + 6, tl.load(column + 12 * images, mask=live), mask=live)
    tl.store(out + 7, tl.load(column + 13 * images, mask=live), mask=live)
    put_harmonics(harmonics + r * 16, dx, dy, dz, live)
    row = wanted + r * 8
    for c in tl.static_range(3):
        behind = uniform(s0, s1, now, _BACKGROUND, r * 3 + c) if RANDOM else tl.load(background + c) + r * 0.0
        colour = ((rgba >> (8 * c)) & 255).to(tl.float32) / 255.0
        tl.store(row + c, behind + alpha * (colour - behind), mask=live)
        tl.store(row + 3 + c, behind, mask=live)
    if MASKED:
        weight = tl.where(tl.load(masks + at, mask=live, other=0) > 0, weight, 0.0)
    tl.store(row + 6, weight, mask=live)
    tl.store(row + 7, tl.load(column + 14 * images, mask=live), mask=live)
    tl.store(jitter + r, uniform(s0, s1, now, _JITTER, r), mask=live)
    tl.store(drawn + r, image.to(tl.int32), mask=live)


@triton.jit(do_not_specialize=["n"])
def look(origins, directions, near, far, n, rays, harmonics, BLOCK: tl.constexpr):
    """Write given rays (origins, directions [n, 3]; near, far [n]) to rays and harmonics in the layout of `draw`."""
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = r < n
    out = rays + r * 8
    x, y, z = (
        tl.load(directions + r * 3, mask=live, other=0.0),
        tl.load(directions + r * 3 + 1, mask=live, other=0.0),
        tl.load(directions + r * 3 + 2, mask=live, other=1.0),
    )
    for c in tl.static_range(3):
        tl.store(out + c, tl.load(origins + r * 3 + c, mask=live), mask=live)
    tl.store(out + 3, x, mask=live)
    tl.store(out + 4, y, mask=live)
    tl.store(out + 5, z, mask=live)
    tl.store(out + 6, tl.load(near + r, mask=live), mask=live)
    tl.store(out + 7, tl.load(far + r, mask=live), mask=live)
    put_harmonics(harmonics + r * 16, x, y, z, live)

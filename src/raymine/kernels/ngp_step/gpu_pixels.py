"""Pixels of the rays of a step, in Triton: drawn uniformly, or in part by the score of image cells."""

from __future__ import annotations

import triton
import triton.language as tl

from raymine.kernels.philox.gpu import below, word
from raymine.kernels.philox.op import Stream

_PIXEL: tl.constexpr = tl.constexpr(int(Stream.PIXEL))
_CELL: tl.constexpr = tl.constexpr(int(Stream.CELL))
_TO_UNIT: tl.constexpr = tl.constexpr(2.0**-32)


@triton.jit
def draw_evenly(s0, s1, now, r, n, images, places, live):
    """image, y, x of rays r out of n rays: the same draws as `pixels.draw_uniform`."""
    image = below(word(s0, s1, now, _PIXEL, r), images)
    height = tl.load(places + image * 3 + 1, mask=live, other=1).to(tl.int32)
    width = tl.load(places + image * 3 + 2, mask=live, other=1).to(tl.int32)
    y = below(word(s0, s1, now, _PIXEL, n + r), height)
    x = below(word(s0, s1, now, _PIXEL, 2 * n + r), width)
    return image, y, x


@triton.jit
def draw_by_score(
    s0, s1, now, r, n, images, places, live, coverage, running, boxes, weights, firsts, side, cells, halvings,
    WEIGHED: tl.constexpr,
):  # fmt: skip
    """image, y, x and weight of rays r out of n rays: the same draws as `pixels.PixelSampler`.

    The first rays are drawn uniformly, the others by cell. coverage [1] float64: fraction of rays that are drawn
    uniformly. running [cells + 1] float64: CDF of the cells, from 0 to 1. boxes [cells, 5] int32: image, top, left,
    height, width. weights [cells] float32: weights of rays by cell, used if WEIGHED. firsts [images, 2] int32: first
    cell of an image and its cells per row. side: side of a cell in pixels. halvings: steps of a binary search in
    `cells`.
    """
    wanted = tl.load(coverage) * n
    least = wanted.to(tl.int32)
    chance = word(s0, s1, now, _CELL, r * 0).to(tl.float64) * _TO_UNIT
    evenly = (wanted + chance).to(tl.int32)
    image, y, x = draw_evenly(s0, s1, now, r, evenly, images, places, live)
    cell = tl.load(firsts + image * 2, mask=live, other=0)
    cell += y // side * tl.load(firsts + image * 2 + 1, mask=live, other=0) + x // side
    scored = live & (r >= evenly)
    j, words = tl.maximum(r - evenly, 0), n - least
    number = (word(s0, s1, now, _CELL, 1 + j).to(tl.float64) * _TO_UNIT + j) / tl.maximum(n - evenly, 1)
    low, high = j * 0, j * 0 + cells - 1
    for _ in range(halvings):
        middle = (low + high) // 2
        beyond = tl.load(running + 1 + middle) <= number
        open = low < high
        low = tl.where(open & beyond, middle + 1, low)
        high = tl.where(open & (beyond == 0), middle, high)
    box = boxes + low * 5
    down, across = word(s0, s1, now, _CELL, 1 + words + j), word(s0, s1, now, _CELL, 1 + 2 * words + j)
    image = tl.where(scored, tl.load(box), image)
    y = tl.where(scored, tl.load(box + 1) + below(down, tl.load(box + 3)), y)
    x = tl.where(scored, tl.load(box + 2) + below(across, tl.load(box + 4)), x)
    weight = x * 0.0 + 1.0
    if WEIGHED:
        weight = tl.load(weights + tl.where(scored, low, cell), mask=live, other=0.0)
    return image, y, x, weight

"""Numba kernels of the splat rasteriser: drawing in bands of rows, front to back, and the gradient of it.

A splat g has the centre (x, y), the inverse covariance (a, b; b, c), the opacity o and a colour. At an offset (u, v)
from the centre its alpha is min(0.99, o exp(-(a u^2 + 2 b u v + c v^2) / 2)), and 0 below 1/255. A row of `splats` is
x, y, a, b, c, o, red, green, blue, and the half width and half height of the box outside of which alpha is 0.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

ROWS = 8
"""Rows of a band. Bands are drawn in parallel, each with a list of the splats that touch it, nearest first."""

FAINT = 1.0 / 255.0
MOST = 0.99
STOP = 1e-4


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator,unused-ignore]
def band_lists(splats: np.ndarray, height: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the splats of each band, in their order, one band after another, and where each band begins."""
    bands = (height + ROWS - 1) // ROWS
    first = np.zeros(bands + 1, np.int64)
    for fill in range(2):
        if fill == 1:
            for band in range(bands, 0, -1):
                first[band] = first[band - 1]
            first[0] = 0
            for band in range(bands):
                first[band + 1] += first[band]
            place = first[:-1].copy()
            found = np.empty(first[-1], np.int64)
        for g in range(splats.shape[0]):
            low = max(0.0, math.floor((splats[g, 1] - splats[g, 10]) / ROWS))
            high = min(bands - 1.0, math.floor((splats[g, 1] + splats[g, 10]) / ROWS))
            for band in range(int(low), int(high) + 1):
                if fill == 0:
                    first[band] += 1
                else:
                    found[place[band]] = g
                    place[band] += 1
    return found, first


@njit(parallel=True, cache=True, nogil=True, error_model="numpy", fastmath={"contract"})  # type: ignore[untyped-decorator,unused-ignore]
def draw(
    splats: np.ndarray, lists: np.ndarray, first: np.ndarray, colour: np.ndarray, clear: np.ndarray, last: np.ndarray
) -> None:
    """Draw into colour [H, W, 3] (zeros) and transmittance `clear` [H, W] (ones).

    last [H, W]: the entry of `lists` that was drawn last, -1 if none was.
    """
    height, width = clear.shape
    for band in prange(first.shape[0] - 1):
        for k in range(first[band], first[band + 1]):
            g = lists[k]
            x, y, a, b, c, o = splats[g, 0], splats[g, 1], splats[g, 2], splats[g, 3], splats[g, 4], splats[g, 5]
            left = max(0, math.ceil(x - splats[g, 9] - 0.5))
            right = min(width - 1, math.floor(x + splats[g, 9] - 0.5))
            top = max(band * ROWS, math.ceil(y - splats[g, 10] - 0.5))
            bottom = min(min(height, (band + 1) * ROWS) - 1, math.floor(y + splats[g, 10] - 0.5))
            for j in range(top, bottom + 1):
                v = j + np.float32(0.5) - y
                for i in range(left, right + 1):
                    t = clear[j, i]
                    if t < STOP:
                        continue
                    u = i + np.float32(0.5) - x
                    alpha = min(np.float32(MOST), o * math.exp(-0.5 * (a * u * u + c * v * v) - b * u * v))
                    if alpha < FAINT:
                        continue
                    weight = t * alpha
                    colour[j, i, 0] += weight * splats[g, 6]
                    colour[j, i, 1] += weight * splats[g, 7]
                    colour[j, i, 2] += weight * splats[g, 8]
                    clear[j, i] = t * (1 - alpha)
                    last[j, i] = k


@njit(parallel=True, cache=True, nogil=True, error_model="numpy", fastmath={"contract"})  # type: ignore[untyped-decorator,unused-ignore]
def pull_back(
    splats: np.ndarray,
    lists: np.ndarray,
    first: np.ndarray,
    clear: np.ndarray,
    last: np.ndarray,
    by_colour: np.ndarray,
    by_clear: np.ndarray,
) -> np.ndarray:
    """Gradients [entries of `lists`, 9] of x, y, a, b, c, o, red, green, blue, from those of colour and `clear`.

    It goes from back to front. `behind` is the gradient's product with what lies behind the present splat, and the
    transmittance before a splat is the one after it divided by 1 - alpha.
    """
    height, width = clear.shape
    out = np.zeros((lists.shape[0], 9), np.float32)
    for band in prange(first.shape[0] - 1):
        start, end = band * ROWS, min(height, (band + 1) * ROWS)
        after = clear[start:end].copy()
        behind = clear[start:end] * by_clear[start:end]
        for k in range(first[band + 1] - 1, first[band] - 1, -1):
            g = lists[k]
            x, y, a, b, c, o = splats[g, 0], splats[g, 1], splats[g, 2], splats[g, 3], splats[g, 4], splats[g, 5]
            left = max(0, math.ceil(x - splats[g, 9] - 0.5))
            right = min(width - 1, math.floor(x + splats[g, 9] - 0.5))
            top = max(start, math.ceil(y - splats[g, 10] - 0.5))
            bottom = min(end - 1, math.floor(y + splats[g, 10] - 0.5))
            for j in range(top, bottom + 1):
                v = j + np.float32(0.5) - y
                for i in range(left, right + 1):
                    if k > last[j, i]:
                        continue
                    u = i + np.float32(0.5) - x
                    fall = math.exp(-0.5 * (a * u * u + c * v * v) - b * u * v)
                    alpha = min(np.float32(MOST), o * fall)
                    if alpha < FAINT:
                        continue
                    before = after[j - start, i] / (1 - alpha)
                    weight = before * alpha
                    own = (
                        splats[g, 6] * by_colour[j, i, 0]
                        + splats[g, 7] * by_colour[j, i, 1]
                        + splats[g, 8] * by_colour[j, i, 2]
                    )
                    for channel in range(3):
                        out[k, 6 + channel] += weight * by_colour[j, i, channel]
                    by_alpha = before * own - behind[j - start, i] / (1 - alpha)
                    behind[j - start, i] += weight * own
                    after[j - start, i] = before
                    if o * fall >= MOST:
                        continue
                    out[k, 5] += fall * by_alpha
                    by_power = alpha * by_alpha
                    out[k, 0] += by_power * (a * u + b * v)
                    out[k, 1] += by_power * (c * v + b * u)
                    out[k, 2] -= by_power * np.float32(0.5) * u * u
                    out[k, 3] -= by_power * u * v
                    out[k, 4] -= by_power * np.float32(0.5) * v * v
    return out


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator,unused-ignore]
def sum_entries(entries: np.ndarray, lists: np.ndarray, count: int) -> np.ndarray:
    """Gradients [entries, 9] of the lists, added up for each splat [count, 9]."""
    out = np.zeros((count, entries.shape[1]), np.float32)
    for k in range(lists.shape[0]):
        for column in range(entries.shape[1]):
            out[lists[k], column] += entries[k, column]
    return out

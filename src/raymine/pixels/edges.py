"""The mean image gradient magnitude of each cell.

For a pixel with colour c (over mid grey, in 0..1) and alpha a, and differences D to its neighbours on either side,

    g^2 = sum over both axes of the mean over the two sides of (|D c|^2 / 3 + (D a)^2)

On a linear ramp this is the squared length of the gradient. It detects edges from both sides and does not miss a
pattern of single pixels. At the image border, where a neighbour is missing, the other difference counts twice.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from raymine.contracts import ImageSource
from raymine.machine import cores
from raymine.pixels.cells import Cells

# Pixels processed at a time. Below 2^18 the calls of NumPy are so short that threads wait for each other: 100 images of
# 800x800 take 1.5 s on 16 cores with 2^16 pixels, as on one, and 0.4 s with whole images.
_BAND = 1 << 20
# Bytes of the images and of the floats of bands that are in memory at once, and bytes of those floats per pixel.
_IN_MEMORY, _FLOATS = 256 << 20, 48


def edge_map(images: ImageSource, cells: Cells) -> Tensor:
    """The mean of g over each cell, [N] float64 >= 0, in full contrasts per pixel.

    Reads one image for each core at a time, fewer if they are large. NumPy releases the GIL, so threads suffice.
    """
    pixels = int(cells.sizes.prod(1).max())
    each = 4 * pixels + _FLOATS * min(pixels, _BAND)
    with ThreadPoolExecutor(max(1, min(cores(), _IN_MEMORY // each))) as pool:
        parts = pool.map(lambda i: _cell_means(images.image(i), cells.side).reshape(-1), range(len(cells.sizes)))
        return torch.from_numpy(np.concatenate(list(parts)))


def _cell_means(rgba: np.ndarray, side: int) -> np.ndarray:
    """RGBA [H, W, 4] uint8 -> mean of g per cell, [rows, columns] float64."""
    height, width = rgba.shape[:2]
    tall = max(1, _BAND // (side * width)) * side  # rows of pixels in a band: whole cells
    starts = np.arange(0, width, side)
    out = []
    for top in range(0, height, tall):
        bottom = min(top + tall, height)
        above, below = max(top - 1, 0), min(bottom + 1, height)
        steep = _gradient(rgba[above:below])[top - above : bottom - above]
        sums = np.add.reduceat(np.add.reduceat(steep, np.arange(0, bottom - top, side), 0, np.float64), starts, 1)
        out.append(sums)
    sums = np.concatenate(out)
    heights = np.minimum(side, height - np.arange(0, height, side))
    return sums / (heights[:, None] * np.minimum(side, width - starts))


def _gradient(rgba: np.ndarray) -> np.ndarray:
    """RGBA [h, w, 4] uint8 -> g [h, w] float32."""
    alpha = rgba[..., 3].astype(np.float32) * np.float32(1 / 255)
    squares: list[np.ndarray] = [np.zeros_like(alpha[1:]), np.zeros_like(alpha[:, 1:])]
    for channel in range(3):
        value = rgba[..., channel].astype(np.float32)
        # Over mid grey c = a v + (1 - a) / 2; a constant does not change a difference.
        value = (value * np.float32(1 / 255) - np.float32(0.5)) * alpha
        _add_squares(value, np.float32(1 / 3), squares)
    _add_squares(alpha, np.float32(1), squares)
    return np.sqrt(_both_sides(squares[0], 0, alpha.shape) + _both_sides(squares[1], 1, alpha.shape))


def _add_squares(value: np.ndarray, factor: np.float32, squares: list[np.ndarray]) -> None:
    """Add factor * (difference of neighbours)^2 down the rows [h - 1, w] and along them [h, w - 1]."""
    for total, difference in zip(squares, (value[1:] - value[:-1], value[:, 1:] - value[:, :-1]), strict=True):
        difference *= difference
        difference *= factor
        total += difference


def _both_sides(square: np.ndarray, axis: int, shape: tuple[int, ...]) -> np.ndarray:
    """The mean of the squared differences on both sides of each pixel, [h, w]; 0 along an axis with a single pixel."""
    out = np.zeros(shape, np.float32)
    if square.shape[axis] == 0:
        return out
    square, turned = np.moveaxis(square, axis, 0), np.moveaxis(out, axis, 0)
    turned[1:-1] = (square[1:] + square[:-1]) * np.float32(0.5)
    turned[0], turned[-1] = square[0], square[-1]
    return out

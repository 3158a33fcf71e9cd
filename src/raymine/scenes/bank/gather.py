"""The kernels of `ImageBank.gather`: random pixels of a pack, with Numba. Imported on first use.

table [I, 5] int64: offset, height, width, channels and mask offset (-1: no mask) of each image. image, y, x [R] int64:
the pixels. Both kernels fill rgba [R, 4] and weight [R] float32. They return -1, or the first row that could not be
filled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

# The C function `pread`, referenced by name, so that the compiled kernel can be cached on disk.
_pread: Any = types.ExternalFunction("pread", types.intp(types.intc, types.voidptr, types.uintp, types.int64))


@njit(cache=True, nogil=True, error_model="numpy")
def _missing(table: np.ndarray, i: int, y: int, x: int) -> bool:
    return i < 0 or i >= table.shape[0] or y < 0 or y >= table[i, 1] or x < 0 or x >= table[i, 2]


@njit(cache=True, nogil=True, error_model="numpy")
def gather_pixels(
    data: np.ndarray,
    table: np.ndarray,
    image: np.ndarray,
    y: np.ndarray,
    x: np.ndarray,
    rgba: np.ndarray,
    weight: np.ndarray,
) -> int:
    """Reads pixels from a pack in memory, data [bytes] uint8."""
    scale = np.float32(1.0 / 255.0)
    for row in range(image.shape[0]):
        i = image[row]
        if _missing(table, i, y[row], x[row]):
            return row
        pixel = y[row] * table[i, 2] + x[row]
        channels = table[i, 3]
        at = table[i, 0] + pixel * channels
        for channel in range(3):
            rgba[row, channel] = data[at + channel] * scale
        rgba[row, 3] = data[at + 3] * scale if channels == 4 else np.float32(1.0)
        mask = table[i, 4]
        weight[row] = np.float32(1.0) if mask < 0 or data[mask + pixel] >= 128 else np.float32(0.0)
    return -1


@njit(cache=True, nogil=True, error_model="numpy")
def read_pixels(
    descriptor: int,
    table: np.ndarray,
    image: np.ndarray,
    y: np.ndarray,
    x: np.ndarray,
    rgba: np.ndarray,
    weight: np.ndarray,
) -> int:
    """Reads pixels from an open file. A row that the system fails to read also counts as not filled."""
    scale = np.float32(1.0 / 255.0)
    piece = np.full(4, 255, np.uint8)
    for row in range(image.shape[0]):
        i = image[row]
        if _missing(table, i, y[row], x[row]):
            return row
        pixel = y[row] * table[i, 2] + x[row]
        channels = table[i, 3]
        piece[3] = 255
        if _pread(descriptor, piece.ctypes.data, channels, table[i, 0] + pixel * channels) != channels:
            return row
        for channel in range(4):
            rgba[row, channel] = piece[channel] * scale
        weight[row] = np.float32(1.0)
        mask = table[i, 4]
        if mask >= 0:
            if _pread(descriptor, piece.ctypes.data, 1, mask + pixel) != 1:
                return row
            weight[row] = np.float32(1.0) if piece[0] >= 128 else np.float32(0.0)
    return -1

"""How sharp a picture is, for comparison with other pictures of the same scene."""

from __future__ import annotations

import numpy as np
from PIL import Image

LONG_SIDE = 640
"""Pictures are reduced to this many pixels before they are measured, so that noise and size do not count."""


def sharpness(image: Image.Image) -> float:
    """Variance of the Laplacian of the grey picture, in levels of 0..255. Higher is sharper; 0 for a flat picture."""
    grey = image.convert("L")
    factor = LONG_SIDE / max(grey.size)
    if factor < 1:
        size = (max(1, round(grey.width * factor)), max(1, round(grey.height * factor)))
        grey = grey.resize(size, Image.Resampling.BOX)
    x = np.asarray(grey, dtype=np.float32)
    if min(x.shape) < 3:
        return 0.0
    inner = x[1:-1, 1:-1]
    laplacian = 4 * inner - x[:-2, 1:-1] - x[2:, 1:-1] - x[1:-1, :-2] - x[1:-1, 2:]
    return float(laplacian.var())

"""Sharpness of pictures."""

from __future__ import annotations

import numpy as np
from PIL import Image

from raymine.ingestion.sharpness import sharpness
from support.textured_room import blurred


def test_blur_lowers_it_and_size_changes_it_little() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    sharp = Image.fromarray(noise).resize((640, 480), Image.Resampling.BICUBIC)
    levels = [sharpness(sharp), sharpness(blurred(sharp, 2)), sharpness(blurred(sharp, 6))]
    assert levels[0] > 1.5 * levels[1] > 6 * levels[2] > 0
    assert sharpness(sharp.resize((2560, 1920), Image.Resampling.BICUBIC)) > 0.5 * levels[0]
    assert sharpness(Image.new("RGB", (100, 100), "red")) == 0.0
    assert sharpness(Image.new("RGB", (2, 2))) == 0.0

"""Even draws: every image equally often, every pixel of an image equally often."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raymine.kernels.philox.op import Stream, uniform, words


class Pixels(NamedTuple):
    """image, y, x [R] int64."""

    image: Tensor
    y: Tensor
    x: Tensor


def draw_uniform(sizes: Tensor, n: int, seed: int, step: int) -> Pixels:
    """n pixels: every image equally often, every pixel of an image equally often. sizes: [I, 2] int64 height, width."""
    word = words(seed, step, Stream.PIXEL, 3 * n, sizes.device).reshape(3, n)
    image = (word[0] * len(sizes)) >> 32
    height, width = sizes[image].unbind(-1)
    return Pixels(image, (word[1] * height) >> 32, (word[2] * width) >> 32)


def draw_backgrounds(n: int, seed: int, step: int, device: torch.device) -> Tensor:
    """[n, 3] a random colour behind every ray, so that a field cannot paint the background into the scene."""
    return uniform(seed, step, Stream.BACKGROUND, (n, 3), device)

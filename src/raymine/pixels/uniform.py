"""Uniform draws: a uniform image, then a uniform pixel of it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raymine.kernels.philox.op import Stream, uniform, words


class Pixels(NamedTuple):
    """Pixels: image index, row y and column x, each [R] int64."""

    image: Tensor
    y: Tensor
    x: Tensor


def draw_uniform(sizes: Tensor, n: int, seed: int, step: int) -> Pixels:
    """Draw n pixels: a uniform image, then a uniform pixel of it. sizes: [I, 2] int64, height and width."""
    word = words(seed, step, Stream.PIXEL, 3 * n, sizes.device).reshape(3, n)
    image = (word[0] * len(sizes)) >> 32
    height, width = sizes[image].unbind(-1)
    return Pixels(image, (word[1] * height) >> 32, (word[2] * width) >> 32)


def draw_backgrounds(n: int, seed: int, step: int, device: torch.device) -> Tensor:
    """Random background colours [n, 3] in [0, 1), so that the field cannot model the background as scene content."""
    return uniform(seed, step, Stream.BACKGROUND, (n, 3), device)

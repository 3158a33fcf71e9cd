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

    def part(self, start: int, stop: int) -> Pixels:
        """The pixels start .. stop - 1."""
        return Pixels(self.image[start:stop], self.y[start:stop], self.x[start:stop])


def draw_uniform(sizes: Tensor, n: int, seed: int, step: int, part: tuple[int, int] | None = None) -> Pixels:
    """Draw n pixels: a uniform image, then a uniform pixel of it. sizes: [I, 2] int64, height and width.

    part: (start, stop), to draw these of the n pixels only.
    """
    if part is None:
        word = words(seed, step, Stream.PIXEL, 3 * n, sizes.device).reshape(3, n)
    else:
        count, starts = part[1] - part[0], (row * n + part[0] for row in range(3))
        word = torch.stack([words(seed, step, Stream.PIXEL, count, sizes.device, first=start) for start in starts])
    image = (word[0] * len(sizes)) >> 32
    height, width = sizes[image].unbind(-1)
    return Pixels(image, (word[1] * height) >> 32, (word[2] * width) >> 32)


def draw_backgrounds(n: int, seed: int, step: int, device: torch.device, first: int = 0) -> Tensor:
    """Random background colours [n, 3] in [0, 1), so that the field cannot model the background as scene content.

    first: index of the first of these rays among all rays of the step.
    """
    return uniform(seed, step, Stream.BACKGROUND, (n, 3), device, first=3 * first)

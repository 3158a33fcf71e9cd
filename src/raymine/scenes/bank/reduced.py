"""Images of which k x k pixels became one, for training that begins with small images."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from raymine.contracts import ImageSource
from raymine.machine import cores
from raymine.scenes import scratch

_MOST_THREADS = 4
"""Each holds one image of the full size as floats."""


class ReducedImages:
    """An `ImageSource` of which every pixel is the mean of k x k pixels of another source; odd ones are cut off.

    Large ones lie in a file (`scenes.scratch`). Colours are averaged by their alpha, so that what is behind transparent
    pixels does not shine through. A pixel is masked if one of its k x k is.
    """

    def __init__(self, images: ImageSource, factor: int) -> None:
        """Reads every image."""
        self.sizes = images.sizes // factor
        starts = np.concatenate(([0], np.cumsum(self.sizes.prod(1))))
        self._starts = starts
        self._pixels = scratch.zeros((int(starts[-1]), 4), np.uint8, "the small images")
        self._masks: list[np.ndarray | None] = [None] * len(self.sizes)

        def load(i: int) -> None:
            height, width = self.sizes[i]
            self._pixels[starts[i] : starts[i + 1]] = reduce_rgba(images.image(i), factor).reshape(-1, 4)
            mask = images.mask(i)
            if mask is not None:
                blocks = mask[: height * factor, : width * factor].reshape(height, factor, width, factor)
                self._masks[i] = np.ascontiguousarray(blocks.min((1, 3)))

        with ThreadPoolExecutor(min(_MOST_THREADS, cores())) as pool:
            list(pool.map(load, range(len(self.sizes))))
        self._first = torch.from_numpy(starts[:-1].astype(np.int64))
        self._widths = torch.from_numpy(self.sizes[:, 1].astype(np.int64))
        self._weights = self._weigh()

    def _weigh(self) -> Tensor | None:
        if all(mask is None for mask in self._masks):
            return None
        weights = scratch.zeros((len(self._pixels),), np.bool_, "the masks of the small images")
        for i, mask in enumerate(self._masks):
            weights[self._starts[i] : self._starts[i + 1]] = True if mask is None else (mask > 0).reshape(-1)
        return torch.from_numpy(weights)

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `contracts.ImageSource`."""
        place = self._first[image] + y * self._widths[image] + x
        rgba = torch.from_numpy(self._pixels)[place].float() / 255
        return rgba, torch.ones(len(place)) if self._weights is None else self._weights[place].float()

    def image(self, index: int) -> np.ndarray:
        """See `contracts.ImageSource`."""
        height, width = self.sizes[index]
        return self._pixels[self._starts[index] : self._starts[index + 1]].reshape(height, width, 4)

    def mask(self, index: int) -> np.ndarray | None:
        """See `contracts.ImageSource`."""
        return self._masks[index]


def reduce_rgba(image: np.ndarray, factor: int) -> np.ndarray:
    """[H, W, 4] uint8 with straight alpha -> the same of [H // factor, W // factor, 4], means of blocks."""
    height, width = image.shape[0] // factor, image.shape[1] // factor
    blocks = image[: height * factor, : width * factor].reshape(height, factor, width, factor, 4).astype(np.float32)
    alpha = blocks[..., 3:]
    weight = alpha.sum((1, 3))
    colour = (blocks[..., :3] * alpha).sum((1, 3)) / np.maximum(weight, 1e-6)
    return np.concatenate((colour, weight / factor**2), -1).round().astype(np.uint8)

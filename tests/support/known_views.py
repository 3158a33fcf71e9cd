"""Images in memory, and a renderer whose error is known, for tests of evaluations."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raymine.contracts import Rays, Rendered


class ListOfImages:
    """An ImageSource over uint8 RGBA arrays with masks."""

    def __init__(self, images: list[np.ndarray], masks: list[np.ndarray]) -> None:
        self.images, self.masks = images, masks

    @property
    def sizes(self) -> np.ndarray:
        return np.array([image.shape[:2] for image in self.images], dtype=np.int64)

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        index = int(image[0])
        rgba = torch.from_numpy(self.images[index])[y, x].float() / 255
        return rgba, torch.from_numpy(self.masks[index])[y, x].float()

    def image(self, index: int) -> np.ndarray:
        return self.images[index]

    def mask(self, index: int) -> np.ndarray | None:
        return self.masks[index] * 255


class FakeRig:
    """Rays that only carry the image's number and the pixel count."""

    def __init__(self, source: ListOfImages) -> None:
        self.source = source

    def rays_for_image(self, index: int) -> Rays:
        n = int(self.source.sizes[index].prod())
        ones = torch.ones(n)
        return Rays(torch.full((n, 3), float(index)), torch.zeros(n, 3), ones, ones)


class ShiftedTruth:
    """Renders the true image plus a constant, over the requested background."""

    def __init__(self, source: ListOfImages, shift: float) -> None:
        self.source, self.shift = source, shift

    def render(self, rays: Rays, background: Tensor) -> Rendered:
        rgba = torch.from_numpy(self.source.images[int(rays.origins[0, 0])]).reshape(-1, 4).double() / 255
        colour = rgba[:, :3] * rgba[:, 3:] + background.double() * (1 - rgba[:, 3:])
        return Rendered((colour + self.shift).float(), rgba[:, 3].float(), rays.near, torch.empty(0))


def random_images(*sizes: tuple[int, int]) -> ListOfImages:
    """Noise of the given heights and widths."""
    rng = np.random.default_rng(5)
    images = [rng.integers(60, 180, (h, w, 4), dtype=np.uint8) for h, w in sizes]
    return ListOfImages(images, [np.ones(i.shape[:2], dtype=np.uint8) for i in images])

"""The quick evaluation: a regular grid of pixels, over the background, masks excluded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raymine.contracts import Bounds, Rays, Rendered
from raymine.evaluate import quick
from raymine.step import TrainData


class Pictures:
    """Images whose red channel encodes the column, with an alpha of 0.5 and an optional mask on the left."""

    def __init__(self, sizes: list[tuple[int, int]], masked: int = 0) -> None:
        self.sizes = np.array(sizes, dtype=np.int64)
        self.masked = masked
        self.asked: list[tuple[int, int, int]] = []

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        self.asked += list(zip(image.tolist(), y.tolist(), x.tolist(), strict=True))
        rgba = torch.zeros(len(x), 4)
        rgba[:, 0] = x / 100
        rgba[:, 3] = 0.5
        return rgba, (x >= self.masked).float()

    def image(self, index: int) -> np.ndarray:
        raise NotImplementedError


class Rig:
    """Rays that carry the pixel's column in their origin."""

    device = torch.device("cpu")

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def rays_for_pixels(self, image: Tensor, x: Tensor, y: Tensor) -> Rays:
        origins = torch.stack([x, y, image], dim=1).float()
        return Rays(origins, origins, origins[:, 0], origins[:, 0])


class Painter:
    """Renders what the pictures hold, over white, plus an error that grows with the image's number."""

    def __init__(self, errors: tuple[float, ...]) -> None:
        self.errors = torch.tensor(errors)

    def render(self, rays: Rays, background: Tensor) -> Rendered:
        colour = torch.full((len(rays), 3), 0.5) * background
        colour[:, 0] += 0.5 * rays.origins[:, 0] / 100
        colour = colour - self.errors[rays.origins[:, 2].long()][:, None]
        return Rendered(colour, colour[:, 0], colour[:, 0], torch.zeros(0))


def data(pictures: Pictures) -> TrainData:
    rig: Any = Rig(len(pictures.sizes))
    return TrainData(rig, pictures, Bounds())


def test_quick_psnr_is_the_mean_over_views() -> None:
    pictures = Pictures([(8, 8), (4, 6)])
    found = quick.quick_psnr(Painter((0.1, 0.01)), data(pictures), (1.0, 1.0, 1.0))
    # Errors of 0.1 and 0.01 everywhere are 20 and 40 dB.
    assert found == pytest.approx(30.0, abs=1e-3)
    assert len(pictures.asked) == 8 * 8 + 4 * 6


def test_large_images_are_sampled_on_a_centred_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "QUICK_RAYS", 8)
    pictures = Pictures([(9, 9), (2, 2)])
    assert quick.quick_psnr(Painter((0.1, 0.1)), data(pictures), (1.0, 1.0, 1.0)) == pytest.approx(20.0, abs=1e-3)
    # Four rays a view: a stride of 5 in the large one, every pixel of the small one.
    assert pictures.asked == [(0, 2, 2), (0, 2, 7), (0, 7, 2), (0, 7, 7), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)]


def test_masked_pixels_do_not_affect_psnr() -> None:
    assert math.isnan(quick.quick_psnr(Painter((0.1,)), data(Pictures([(4, 4)], masked=4)), (1.0, 1.0, 1.0)))
    half = Pictures([(4, 4), (4, 8)], masked=4)
    assert quick.quick_psnr(Painter((0.1, 0.01)), data(half), (1.0, 1.0, 1.0)) == pytest.approx(40.0, abs=1e-3)


def test_non_finite_prediction_gives_low_finite_psnr() -> None:
    found = quick.quick_psnr(Painter((math.nan,)), data(Pictures([(4, 4)])), (1.0, 1.0, 1.0))
    # Black against half red and half white: far below 10 dB, but a number.
    assert 0 < found < 10

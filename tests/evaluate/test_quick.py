"""The quick evaluation: a regular grid of pixels, over the background, masks excluded."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raymine.contracts import Bounds, Rays, Rendered
from raymine.evaluate import quick
from raymine.evaluate.protocol import digest, protocol_of
from raymine.scenes import load_scene
from raymine.step import TrainData
from support.scene_writers import ring, write_colmap


class Pictures:
    """Images whose red channel encodes the column, with an alpha of 0.5 and an optional mask on the left."""

    def __init__(self, sizes: list[tuple[int, int]], masked: int = 0) -> None:
        self.sizes = np.array(sizes, dtype=np.int64)
        self.masked = masked
        self.reads = 0

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def image(self, index: int) -> np.ndarray:
        """Red is the column, modulo 256; alpha is a fifth."""
        self.reads += 1
        rgba = np.zeros((*self.sizes[index], 4), np.uint8)
        rgba[..., 0] = np.arange(rgba.shape[1])
        rgba[..., 3] = 51
        return rgba

    def mask(self, index: int) -> np.ndarray | None:
        height, width = self.sizes[index]
        return np.tile(np.where(np.arange(width) >= self.masked, 255, 0), (height, 1)) if self.masked else None


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
        self.asked: list[list[int]] = []
        """Image, row and column of every pixel that was rendered."""

    def render(self, rays: Rays, background: Tensor) -> Rendered:
        self.asked += rays.origins.long().flip(1).tolist()
        colour = torch.full((len(rays), 3), 0.8) * background
        colour[:, 0] += 0.2 * rays.origins[:, 0] / 255
        colour = colour - self.errors[rays.origins[:, 2].long()][:, None]
        return Rendered(colour, colour[:, 0], colour[:, 0], torch.zeros(0))


def data(pictures: Pictures) -> TrainData:
    rig: Any = Rig(len(pictures.sizes))
    return TrainData(rig, pictures, Bounds())


def test_quick_psnr_is_the_mean_over_views() -> None:
    painter = Painter((0.1, 0.01))
    found = quick.quick_psnr(painter, data(Pictures([(8, 8), (4, 6)])), (1.0, 1.0, 1.0))
    # Errors of 0.1 and 0.01 everywhere are 20 and 40 dB.
    assert found == pytest.approx(30.0, abs=1e-3)
    assert len(painter.asked) == 8 * 8 + 4 * 6


def test_large_images_are_sampled_on_a_centred_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "QUICK_RAYS", 8)
    painter, pictures = Painter((0.1, 0.1)), Pictures([(9, 9), (2, 2)])
    assert quick.quick_psnr(painter, data(pictures), (1.0, 1.0, 1.0)) == pytest.approx(20.0, abs=1e-3)
    # Four rays a view: a stride of 5 in the large one, every pixel of the small one.
    large, small = [[0, y, x] for y in (2, 7) for x in (2, 7)], [[1, y, x] for y in (0, 1) for x in (0, 1)]
    assert painter.asked == [*large, *small]


def test_images_are_read_once_for_many_evaluations() -> None:
    pictures = Pictures([(4, 4)])
    evaluation = quick.QuickEvaluation(data(pictures), (1.0, 1.0, 1.0))
    assert evaluation.psnr(Painter((0.1,))) == pytest.approx(20.0, abs=1e-3)
    assert evaluation.psnr(Painter((0.01,))) == pytest.approx(40.0, abs=1e-3)
    assert pictures.reads == 1


def test_masked_pixels_do_not_affect_psnr() -> None:
    assert math.isnan(quick.quick_psnr(Painter((0.1,)), data(Pictures([(4, 4)], masked=4)), (1.0, 1.0, 1.0)))
    half = Pictures([(4, 4), (4, 8)], masked=4)
    assert quick.quick_psnr(Painter((0.1, 0.01)), data(half), (1.0, 1.0, 1.0)) == pytest.approx(40.0, abs=1e-3)


def test_non_finite_prediction_gives_low_finite_psnr() -> None:
    found = quick.quick_psnr(Painter((math.nan,)), data(Pictures([(4, 4)])), (1.0, 1.0, 1.0))
    # Black against nearly white: far below 10 dB, but a number.
    assert 0 < found < 10


def test_protocol_tells_views_size_split_and_background_apart(tmp_path: Path) -> None:
    write_colmap(ring(), tmp_path)
    scene = load_scene(tmp_path)
    frames = scene.of_split("test")
    assert len(frames) > 1
    base = quick.quick_protocol(scene, frames, "test")
    assert (base["split"], base["views"], base["available"]) == ("test", len(frames), len(frames))
    others = [
        quick.quick_protocol(load_scene(tmp_path, downscale=4), frames, "test"),
        quick.quick_protocol(scene, frames[:1], "test"),
        quick.quick_protocol(scene, frames, "held-out"),
        quick.quick_protocol(replace(scene, background=(1.0, 0.0, 1.0)), frames, "test"),
    ]
    assert len({found["digest"] for found in (base, *others)}) == 5
    assert quick.quick_protocol(load_scene(tmp_path), frames, "test") == base
    # It is not that of a full evaluation of the same views.
    assert base["digest"] != digest(protocol_of(scene, "test", len(frames)))

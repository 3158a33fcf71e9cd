"""Images of means of blocks: alpha, masks and odd sizes."""

from __future__ import annotations

import numpy as np
import torch

from raymine.scenes.bank.reduced import ReducedImages, reduce_rgba
from support.scenes import MemoryImages


def test_colours_are_averaged_by_alpha() -> None:
    image = np.zeros((2, 2, 4), np.uint8)
    image[0, 0] = 200, 100, 50, 255
    image[1, 1] = 9, 9, 9, 0
    assert reduce_rgba(image, 2).tolist() == [[[200, 100, 50, 64]]]


def test_odd_rows_and_columns_are_cut() -> None:
    image = np.arange(5 * 7 * 4, dtype=np.uint8).reshape(5, 7, 4)
    image[..., 3] = 255
    found = reduce_rgba(image, 2)
    assert found.shape == (2, 3, 4)
    assert found[1, 2, 0] == round(float(image[2:4, 4:6, 0].mean()))


def test_gather_image_and_mask_agree() -> None:
    class Masked(MemoryImages):
        def mask(self, index: int) -> np.ndarray | None:
            mask = np.full((8, 8), 255, np.uint8)
            mask[0, 3] = 0
            return mask if index else None

    rng = np.random.default_rng(0)
    source = Masked([rng.integers(0, 255, (8, 8, 4), dtype=np.uint8) for _ in range(2)])
    small = ReducedImages(source, 4)
    image, y, x = torch.tensor([0, 1, 1]), torch.tensor([1, 0, 1]), torch.tensor([0, 0, 1])
    rgba, weight = small.gather(image, y, x)
    for row, (i, v, u) in zip(rgba, zip(image, y, x, strict=True), strict=True):
        assert torch.allclose(row * 255, torch.from_numpy(small.image(int(i))[int(v), int(u)]).float())
    assert weight.tolist() == [1.0, 0.0, 1.0]
    assert small.mask(0) is None
    assert (np.asarray(small.mask(1)) > 0).tolist() == [[False, True], [True, True]]

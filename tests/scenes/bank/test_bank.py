"""The image bank: gathered pixels and masks, the memory budget, and errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from raymine.contracts import ImageSource, ReadsRows
from raymine.scenes.bank import open_bank
from support.bank_scenes import noise, noise_scene, opened, save, scene_of


def test_mixed_sizes_channels_and_masks_are_gathered_exactly(tmp_path: Path) -> None:
    rgb, rgba = noise(1, 5, 7), noise(2, 4, 3, 4)
    mask = np.zeros((4, 3), np.uint8)
    mask[1, 2] = 255
    scene = scene_of(
        tmp_path,
        [(save(tmp_path / "a.png", rgb), 7, 5), (save(tmp_path / "b.png", rgba), 3, 4)],
        {1: save(tmp_path / "b_mask.png", mask)},
    )
    with opened(scene, tmp_path) as bank:
        source: ImageSource = bank
        assert source.sizes.tolist() == [[5, 7], [4, 3]]
        assert source.sizes.dtype == np.int64
        rows = torch.tensor([[0, 4, 6], [0, 0, 0], [1, 3, 2], [1, 1, 2], [1, 0, 0]])
        colour, weight = source.gather(rows[:, 0], rows[:, 1], rows[:, 2])
        assert colour.dtype == weight.dtype == torch.float32
        expected = [[*rgb[4, 6], 255], [*rgb[0, 0], 255], rgba[3, 2], rgba[1, 2], rgba[0, 0]]
        np.testing.assert_array_equal(colour.numpy(), np.array(expected, np.uint8) * np.float32(1 / 255))
        assert weight.tolist() == [1, 1, 0, 1, 0]
        np.testing.assert_array_equal(bank.image(1), rgba)
        np.testing.assert_array_equal(bank.image(0)[..., :3], rgb)
        assert (bank.image(0)[..., 3] == 255).all()
        np.testing.assert_array_equal(bank.mask(1), mask)
        assert bank.mask(0) is None
        empty = torch.empty(0, dtype=torch.int64)
        assert [tuple(t.shape) for t in bank.gather(empty, empty, empty)] == [(0, 4), (0,)]


def test_a_pack_larger_than_the_budget_is_read_without_mapping_it(tmp_path: Path) -> None:
    pixels = [noise(i, 400, 500, 3 + i % 2) for i in range(4)]
    mask = np.where(noise(9, 400, 500)[..., 0] > 128, np.uint8(255), np.uint8(0))
    files = [(save(tmp_path / f"{i}.png", p), 500, 400) for i, p in enumerate(pixels)]
    scene = scene_of(tmp_path, files, {3: save(tmp_path / "mask.png", mask)})
    rng = np.random.default_rng(0)
    i, y, x = (torch.from_numpy(rng.integers(0, top, 5000)) for top in (4, 400, 500))
    with opened(scene, tmp_path) as roomy:
        inside = roomy.gather(i, y, x)
        assert roomy.mapped
    with opened(scene, tmp_path, memory_budget=2 << 20) as tight:
        assert tight.nbytes > 2 << 20
        outside = tight.gather(i, y, x)
        assert not tight.mapped
    # Packing may have more memory than reading.
    with opened(scene, tmp_path, bank_budget=2 << 20) as bank:
        assert not bank.mapped
    for a, b in zip(inside, outside, strict=True):
        assert torch.equal(a, b)
    assert 0.2 < float((inside[1] == 0).float().mean()) * 4 < 0.8


@pytest.mark.parametrize("mapped", [True, False])
def test_gather_out_of_range_or_after_close_raises(tmp_path: Path, mapped: bool) -> None:
    scene = scene_of(tmp_path, [(save(tmp_path / "a.png", noise(0, 70, 80)), 80, 70)])
    one = torch.tensor([0])
    with opened(scene, tmp_path) as bank:
        bank._pack.mapped = mapped
        with pytest.raises(IndexError, match="y=70, x=0 does not exist: image 0 is 80x70"):
            bank.gather(one, one + 70, one)
        with pytest.raises(IndexError, match="y=0, x=-1 does not exist"):
            bank.gather(one, one, one - 1)
        with pytest.raises(IndexError, match="Image 1 does not exist: the bank has 1 images"):
            bank.gather(one + 1, one, one)
        with pytest.raises(ValueError, match=r"must be \[R\] alike, got \(1,\), \(2,\)"):
            bank.gather(one, torch.tensor([0, 0]), one)
    with pytest.raises(ValueError, match="has been closed"):
        bank.gather(one, one, one)
    bank.close()


def test_rows_are_read_as_the_image_has_them(tmp_path: Path) -> None:
    rgb, rgba = noise(1, 500, 700), noise(2, 40, 30, 4)
    mask = np.where(noise(3, 40, 30)[..., 0] > 128, np.uint8(255), np.uint8(0))
    scene = scene_of(
        tmp_path,
        [(save(tmp_path / "a.png", rgb), 700, 500), (save(tmp_path / "b.png", rgba), 30, 40)],
        {1: save(tmp_path / "b_mask.png", mask)},
    )
    with opened(scene, tmp_path) as bank:
        assert isinstance(bank, ReadsRows)
        assert bank.masked
        for index, top, height in ((0, 0, 500), (0, 123, 7), (1, 39, 1), (1, 5, 20)):
            pixels = np.zeros((height, bank.sizes[index, 1], 4), np.uint8)
            kept = np.zeros(pixels.shape[:2], np.uint8)
            bank.read_rows(index, top, pixels, kept)
            np.testing.assert_array_equal(pixels, bank.image(index)[top : top + height])
            whole = bank.mask(index)
            np.testing.assert_array_equal(kept, 255 if whole is None else whole[top : top + height])
            bank.read_rows(index, top, pixels, None)
        for top, width in ((-1, 700), (499, 700), (0, 699)):
            with pytest.raises(IndexError, match="do not exist"):
                bank.read_rows(0, top, np.zeros((2, width, 4), np.uint8), None)


def test_new_pack_drops_old_ones_where_a_budget_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYMINE_CACHE", str(tmp_path / "cache"))
    told: list[str] = []
    for number, stated in enumerate(("", "much", "1KB")):
        monkeypatch.setenv("RAYMINE_CACHE_BUDGET", stated)
        scene = noise_scene(tmp_path / f"scene{number}")
        for _ in range(2):
            with open_bank(scene, range(6), message=told.append) as bank:
                assert bank.image(2).shape == (5, 7, 4)
    assert [folder.name[:6] for folder in (tmp_path / "cache/banks").iterdir()] == ["scene2"]
    assert [sentence.partition(":")[0] for sentence in told[:1]] == ["RAYMINE_CACHE_BUDGET is ignored"]
    assert told[1].startswith("Dropped 2 old entries of the cache")
    assert len(told) == 2

"""Decoding: image modes, downscaling, EXIF orientation and masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raymine.errors import SceneError
from support.bank_scenes import noise, opened, save, scene_of


def test_every_image_mode_becomes_rgb_or_rgba(tmp_path: Path) -> None:
    grey = np.array([[0, 100], [200, 255]], np.uint8)
    palette = Image.new("P", (2, 2))
    palette.putpalette([10, 20, 30, 200, 100, 50] + [0] * 762)
    palette.putdata([0, 1, 1, 0])
    palette.save(tmp_path / "palette.png")
    palette.save(tmp_path / "clear.png", transparency=0)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    Image.fromarray(grey.astype(np.float32) / 255).save(tmp_path / "float.tiff")
    Image.merge("LA", (Image.fromarray(grey), Image.fromarray(255 - grey))).save(tmp_path / "la.png")
    Image.fromarray(grey > 150).save(tmp_path / "bits.png")
    Image.new("CMYK", (2, 2), (0, 255, 255, 0)).save(tmp_path / "ink.tiff")
    Image.fromarray(np.full((2, 2, 3), 77, np.uint8)).save(tmp_path / "keyed.png", transparency=(77, 77, 77))
    names = ["palette.png", "clear.png", "grey.png", "deep.png", "float.tiff", "la.png", "bits.png", "ink.tiff"]
    scene = scene_of(tmp_path, [(tmp_path / name, 2, 2) for name in [*names, "keyed.png"]])
    with opened(scene, tmp_path) as bank:
        first = [bank.image(i)[0, 0].tolist() for i in range(len(bank))]
        last = [bank.image(i)[1, 1].tolist() for i in range(len(bank))]
        channels = [slot.channels for slot in bank._index.slots]
    assert channels == [3, 4, 3, 3, 3, 4, 3, 3, 4]
    assert first[0] == [10, 20, 30, 255]
    assert first[1][3] == 0
    assert first[2] == first[3] == first[4] == [0, 0, 0, 255]
    assert last[2] == last[3] == last[4] == [255, 255, 255, 255]
    assert first[5] == [0, 0, 0, 255]
    assert last[5] == [255, 255, 255, 0]
    assert (first[6], last[6]) == ([0, 0, 0, 255], [255, 255, 255, 255])
    assert first[7] == [255, 0, 0, 255]
    assert first[8][3] == 0


def test_shrinking_averages_premultiplied_colour(tmp_path: Path) -> None:
    pixels = np.zeros((2, 4, 4), np.uint8)
    pixels[:, :] = (0, 255, 0, 0)  # invisible green must not show
    pixels[0, 0] = (200, 40, 0, 255)
    pixels[:, 2:] = (100, 50, 20, 255)
    scene = scene_of(tmp_path, [(save(tmp_path / "a.png", pixels), 2, 1)])
    with opened(scene, tmp_path) as bank:
        (edge, inside) = bank.image(0)[0].tolist()
    assert edge[3] == 64
    assert abs(edge[0] - 200) <= 2
    assert abs(edge[1] - 40) <= 2
    assert inside == [100, 50, 20, 255]


def test_integer_downscaling_averages_exactly_and_other_factors_closely(tmp_path: Path) -> None:
    ramp = np.tile(np.arange(0, 240, dtype=np.uint8), (60, 1))
    path = save(tmp_path / "a.png", np.stack([ramp] * 3, -1))
    scene = scene_of(tmp_path, [(path, 60, 15), (path, 100, 25)])
    with opened(scene, tmp_path) as bank:
        quarter, odd = bank.image(0)[..., 0].astype(float), bank.image(1)[..., 0].astype(float)
    assert np.abs(quarter - (4 * np.arange(60) + 1.5)).max() <= 0.5
    assert np.abs(odd - (2.4 * (np.arange(100) + 0.5) - 0.5))[:, 2:-2].max() <= 1.0


def test_downscaled_large_jpeg_is_not_shifted(tmp_path: Path) -> None:
    width, height = 1203, 803  # not multiples of eight: the reduced decode covers a fraction of its last pixel
    x = np.arange(width) / width * 255
    Image.fromarray(np.stack([np.tile(x, (height, 1))] * 3, -1).astype(np.uint8)).save(tmp_path / "a.jpg", quality=95)
    scene = scene_of(tmp_path, [(tmp_path / "a.jpg", 75, 50)])
    with opened(scene, tmp_path) as bank:
        row = bank.image(0)[25, :, 0].astype(float)
    assert np.abs(row - (np.arange(75) + 0.5) / 75 * 255)[1:-1].max() < 2.0


@pytest.mark.parametrize("tag", range(1, 9))
def test_exif_orientation_is_applied(tmp_path: Path, tag: int) -> None:
    upright = noise(3, 2, 5)
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[tag]
    exif = Image.Exif()
    exif[0x0112] = tag
    Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / "a.png", exif=exif)
    with opened(scene_of(tmp_path, [(tmp_path / "a.png", 5, 2)]), tmp_path) as bank:
        np.testing.assert_array_equal(bank.image(0)[..., :3], upright)


def test_camera_of_the_stored_shape_does_not_fit_an_upright_image(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(noise(3, 20, 50)).save(tmp_path / "a.png", exif=exif)
    with pytest.raises(SceneError, match=r"is 20x50 pixels, which does not have the shape of its camera \(50x20\)"):
        opened(scene_of(tmp_path, [(tmp_path / "a.png", 50, 20)]), tmp_path)


def test_masks_of_zeros_and_ones_are_scaled_to_the_image(tmp_path: Path) -> None:
    half = np.zeros((8, 8), np.uint8)
    half[:, 4:] = 1
    path = save(tmp_path / "a.png", noise(0, 4, 4))
    scene = scene_of(tmp_path, [(path, 4, 4)], {0: save(tmp_path / "m.png", half)})
    with opened(scene, tmp_path) as bank:
        assert bank.mask(0).tolist() == [[0, 0, 255, 255]] * 4  # type: ignore[union-attr]

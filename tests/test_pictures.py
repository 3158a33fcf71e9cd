"""Pictures: rounding, colour maps, contact sheets, and atomic PNG files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raymine import pictures
from raymine.errors import ResourceError


def test_to_uint8_rounds_to_nearest_and_clips_bad_values() -> None:
    values = np.array([0.0, 1.0, 0.5, 127.4 / 255, 127.6 / 255, -3.0, 7.0, np.nan, np.inf, -np.inf])
    assert pictures.to_uint8(values).tolist() == [0, 255, 128, 127, 128, 0, 255, 0, 255, 0]


def test_to_uint8_inverts_division_by_255_for_every_value() -> None:
    every = np.arange(256, dtype=np.uint8)
    assert np.array_equal(pictures.to_uint8(every.astype(np.float32) / 255), every)
    assert pictures.to_uint8(every) is every


def test_colour_map_gets_lighter_with_every_step() -> None:
    rgb = pictures.colour_map(np.linspace(0.0, 1.0, 256)) / 255.0
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.diff(luminance) > 0).all()
    assert luminance[0] < 0.02
    assert luminance[-1] > 0.75
    assert np.abs(np.diff(rgb, axis=0)).max() < 0.04


def test_depth_picture_near_is_light_far_is_dark_empty_is_black() -> None:
    depth = np.array([[1.0, 2.0, 4.0, 9.0]])
    opacity = np.array([[1.0, 1.0, 1.0, 0.0]])
    picture = pictures.depth_picture(depth, opacity, (1.0, 4.0))[0].astype(int)
    # Inverse distance: 1/2 lies a third of the way from 1/4 to 1/1.
    assert picture[0].tolist() == pictures.colour_map(np.array([1.0]))[0].tolist()
    assert picture[1].tolist() == pictures.colour_map(np.array([1 / 3]))[0].tolist()
    assert picture[2].tolist() == pictures.colour_map(np.array([0.0]))[0].tolist()
    assert picture[3].tolist() == [0, 0, 0]


def test_depth_range_ignores_transparent_and_non_finite_depths() -> None:
    depth = np.array([2.0, 3.0, 100.0, np.inf, np.nan, 0.0])
    opacity = np.array([1.0, 1.0, 0.1, 1.0, 1.0, 1.0])
    near, far = pictures.depth_range(depth, opacity)
    assert near == pytest.approx(2.01)
    assert far == pytest.approx(2.99)
    assert pictures.depth_range(depth, np.zeros(6)) == (1.0, 2.0)
    flat = pictures.depth_range(np.full(4, 5.0), np.ones(4))
    assert flat[0] == 5.0
    assert flat[1] > 5.0


def test_depth_picture_without_opacity_is_black() -> None:
    nothing = pictures.depth_picture(np.full((2, 3), np.nan), np.zeros((2, 3)))
    assert nothing.shape == (2, 3, 3)
    assert not nothing.any()


def test_opacity_picture_is_grey() -> None:
    assert pictures.opacity_picture(np.array([[0.0, 0.5, 1.0]])).tolist() == [[[0] * 3, [128] * 3, [255] * 3]]


def test_error_picture_shows_absolute_errors() -> None:
    truth = np.full((1, 3, 3), 0.5)
    predicted = truth + np.array([0.0, 0.3, -0.3])[None, :, None]
    absolute = pictures.error_picture(predicted, truth)
    assert absolute[0, 0].tolist() == pictures.colour_map(np.array(0.0)).tolist()
    assert absolute[0, 1].tolist() == absolute[0, 2].tolist() == pictures.colour_map(np.array(1.0)).tolist()


def test_contact_sheet_places_every_panel_and_clips_labels() -> None:
    red, blue = np.zeros((20, 30, 3), np.uint8), np.zeros((10, 12, 3), np.uint8)
    red[..., 0], blue[..., 2] = 255, 255
    sheet = pictures.contact_sheet([("red", red), ("a label far wider than its picture", blue)], gap=4)
    assert sheet.shape == (20 + 18 + 4, 30 + 12 + 3 * 4, 3)
    assert (sheet[18:38, 4:34] == [255, 0, 0]).all()
    assert (sheet[18:28, 38:50] == [0, 0, 255]).all()
    assert (sheet[:18, 4:34] < 255).any(), "the label is missing"
    assert (sheet[:18, 51:] == 255).all(), "a label runs past its picture"
    with pytest.raises(ValueError, match="at least one"):
        pictures.contact_sheet([])


def test_write_png_round_trips_and_creates_folders(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    target = tmp_path / "a" / "b" / "x.png"
    pictures.write_png(target, image[:, ::-1])
    assert np.array_equal(np.asarray(Image.open(target)), image[:, ::-1])
    assert os.listdir(target.parent) == ["x.png"]
    with pytest.raises(ValueError, match=r"shape \[H, W, 3\], got \(5, 7\)"):
        pictures.write_png(target, image[..., 0])


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "Cannot write the picture: no space left on the disk"),
        (errno.EACCES, "Cannot write the picture: no permission"),
        (errno.EROFS, "Cannot write the picture: no permission"),
        (errno.EIO, "Cannot write the picture"),
    ],
)
def test_failed_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    target = tmp_path / "x.png"
    pictures.write_png(target, np.zeros((2, 2, 3)))
    before = target.read_bytes()

    def refuse(self: Image.Image, path: Path, format: str, compress_level: int, compress_type: int) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Image.Image, "save", refuse)
    with pytest.raises(ResourceError, match=words) as caught:
        pictures.write_png(target, np.ones((2, 2, 3)))
    assert str(target) in caught.value.message
    assert target.read_bytes() == before
    assert os.listdir(tmp_path) == ["x.png"]


def test_parent_that_is_a_file_raises_resource_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ResourceError, match="Cannot write"):
        pictures.write_png(tmp_path / "file" / "x.png", np.zeros((2, 2, 3)))

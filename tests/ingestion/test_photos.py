"""Upright copies of photos, and what their headers tell."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raymine.ingestion.photos import Photo, Skipped, groups_of, unique_name, write_upright

SIZE = (160, 100)


def picture() -> Image.Image:
    """Red to the left, green at the top right, else blue: no turn looks like another."""
    pixels = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)
    pixels[..., 2] = 200
    pixels[:, :40] = (200, 0, 0)
    pixels[:40, 120:] = (0, 200, 0)
    return Image.fromarray(pixels)


def exif(orientation: int = 1, focal_35: int | None = None, model: str = "") -> Image.Exif:
    found = Image.Exif()
    found[0x0112] = orientation
    if model:
        found[272] = model
    if focal_35 is not None:
        found.get_ifd(0x8769)[41989] = focal_35
    return found


def copied(source: Path, folder: Path) -> Photo:
    folder.mkdir(exist_ok=True)
    found = write_upright(source, folder, set())
    assert isinstance(found, Photo)
    return found


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pixels_are_upright_for_every_orientation(tmp_path: Path, orientation: int) -> None:
    inverse = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
    stored = picture()
    if orientation > 1:
        stored = stored.transpose(Image.Transpose(inverse[orientation]))
    stored.save(tmp_path / "a.jpg", exif=exif(orientation), quality=100, subsampling=0)
    found = copied(tmp_path / "a.jpg", tmp_path / "out")
    assert (found.width, found.height) == SIZE
    with Image.open(tmp_path / "out" / found.name) as shown:
        assert shown.getexif().get(0x0112, 1) == 1
        assert np.abs(np.asarray(shown, dtype=int) - np.asarray(picture())).mean() < 3


def test_upright_jpeg_is_copied_byte_by_byte(tmp_path: Path) -> None:
    picture().save(tmp_path / "a b.jpg", quality=60)
    found = copied(tmp_path / "a b.jpg", tmp_path / "out")
    assert found.name == "a_b.jpg"
    assert (tmp_path / "out" / found.name).read_bytes() == (tmp_path / "a b.jpg").read_bytes()


def test_other_formats_are_converted(tmp_path: Path) -> None:
    picture().save(tmp_path / "a.webp")
    picture().convert("RGBA").save(tmp_path / "b.tif")
    assert copied(tmp_path / "a.webp", tmp_path / "out").name == "a.jpg"
    assert copied(tmp_path / "b.tif", tmp_path / "out").name == "b.png"


def test_damaged_and_tiny_photos_are_skipped_with_a_reason(tmp_path: Path) -> None:
    picture().save(tmp_path / "a.jpg")
    data = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "a.jpg").write_bytes(data[: len(data) // 2])
    Image.new("RGB", (200, 20)).save(tmp_path / "b.png")
    for name, word in (("a.jpg", "cut short"), ("b.png", "too small")):
        found = write_upright(tmp_path / name, tmp_path, set())
        assert isinstance(found, Skipped)
        assert word in found.why


def test_focal_length_and_groups_come_from_the_header(tmp_path: Path) -> None:
    for name, focal, model in (("a", 26, "P"), ("b", 26, "P"), ("c", 52, "P"), ("d", None, "")):
        picture().save(tmp_path / f"{name}.jpg", exif=exif(focal_35=focal, model=model))
    photos = [copied(tmp_path / f"{name}.jpg", tmp_path / "out") for name in "abcd"]
    assert [[photo.name[0] for photo in group] for group in groups_of(photos).values()] == [["a", "b"], ["c"], ["d"]]
    assert photos[0].focal == pytest.approx(26 * math.hypot(*SIZE) / math.hypot(36, 24))
    assert photos[3].focal is None


def test_names_are_unique_whatever_their_case() -> None:
    taken: set[str] = set()
    assert [unique_name(stem, ".jpg", taken) for stem in ("a", "A", "a", " ")] == [
        "a.jpg",
        "A-2.jpg",
        "a-3.jpg",
        "photo.jpg",
    ]

"""What is carried of scenes: the files that raymine reads, with equal pixels, and a limit that holds."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raymine.scenes import load_scene
from raymine.scenes.readers.colmap_model import read_images
from support.disc_scene import write_scene_of_eight
from support.scripts import script

carry = script("plans/carry.py")


def run(monkeypatch: pytest.MonkeyPatch, *options: object) -> int:
    monkeypatch.setattr(sys, "argv", ["carry.py", *(str(each) for each in options)])
    code: int = carry.main()
    return code


@pytest.mark.parametrize("options", [(), ("--smaller",)])
def test_only_files_of_the_scene_are_carried_with_equal_pixels(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = write_scene_of_eight(tmp_path / "disc")
    Image.new("RGB", (50, 50)).save(scene / "train" / "of_no_frame.png")
    assert run(monkeypatch, tmp_path / "out", scene, *options) == 0
    there = tmp_path / "out" / "disc"
    files = {path.relative_to(scene) for path in scene.rglob("*") if path.is_file()}
    carried = {path.relative_to(there) for path in there.rglob("*") if path.is_file()}
    assert files - carried == {Path("train/of_no_frame.png")}
    assert carried <= files
    for frame in load_scene(there).frames:
        before = Image.open(scene / frame.image.relative_to(there))
        after = Image.open(frame.image)
        assert after.format == ("WEBP" if options else "PNG")
        assert np.array_equal(np.asarray(before), np.asarray(after))


def test_features_without_a_point_are_left_out(tmp_path: Path) -> None:
    points = ([7, -1, 3, -1], [-1], [])
    data = struct.pack("<Q", len(points))
    for number, seen in enumerate(points):
        data += struct.pack("<I7dI", number, 1, 0, 0, 0, 0.1, 0.2, 0.3, 1) + f"{number}.jpg".encode() + b"\0"
        data += struct.pack("<Q", len(seen)) + b"".join(struct.pack("<2dq", 1.0, 2.0, point) for point in seen)
    path = tmp_path / "images.bin"
    path.write_bytes(carry.without_loose_features(data))
    found = read_images(path)
    assert [(image.name, image.points.tolist()) for image in found] == [("0.jpg", [7, 3]), ("1.jpg", []), ("2.jpg", [])]
    assert found[2].translation.tolist() == [0.1, 0.2, 0.3]


def test_folder_over_the_limit_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = write_scene_of_eight(tmp_path / "disc")
    assert run(monkeypatch, tmp_path / "out", scene, "--most", 0.0001) == 1
    assert "may hold 0.0001 MiB" in capsys.readouterr().err
    assert run(monkeypatch, tmp_path / "out", tmp_path / "nowhere") == 1
    assert "nowhere" in capsys.readouterr().err

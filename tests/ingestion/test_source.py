"""Which files of the input are used, and what is said about the others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from raymine.errors import SceneError
from raymine.ingestion.source import find_source


def save(path: Path, level: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (80, 60), (level, 0, 0)).save(path)


def test_photos_in_order_and_reasons_for_the_others(tmp_path: Path) -> None:
    for i, name in enumerate(("c.png", "a.jpg", "b.JPG")):
        save(tmp_path / name, i * 60)
    (tmp_path / "d.png").write_bytes((tmp_path / "c.png").read_bytes())
    for name in ("x.heic", "y.dng", "z.xyz", "v.mp4", "notes.txt", ".hidden.jpg"):
        (tmp_path / name).write_bytes(b"?")
    source = find_source(tmp_path)
    assert [file.name for file in source.files] == ["a.jpg", "b.JPG", "c.png"]
    said = {each.name: each.why for each in source.skipped}
    assert said.keys() == {"d.png", "x.heic", "y.dng", "z.xyz", "v.mp4"}
    assert "c.png" in said["d.png"]
    assert "Convert it to JPEG" in said["x.heic"]
    assert not source.video


def test_digest_follows_the_content(tmp_path: Path) -> None:
    for i in range(3):
        save(tmp_path / f"{i}.png", i * 60)
    first = find_source(tmp_path).digest
    assert find_source(tmp_path).digest == first
    save(tmp_path / "2.png", 200)
    assert find_source(tmp_path).digest != first


def test_photos_in_a_subfolder_named_images_are_found(tmp_path: Path) -> None:
    for i in range(3):
        save(tmp_path / "images" / f"{i}.png", i * 60)
    assert len(find_source(tmp_path).files) == 3


def test_input_without_enough_photos_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SceneError, match="no such"):
        find_source(tmp_path / "missing")
    with pytest.raises(SceneError, match="no photo"):
        find_source(tmp_path)
    (tmp_path / "x.HEIC").write_bytes(b"?")
    with pytest.raises(SceneError, match="no photo") as caught:
        find_source(tmp_path)
    assert "x.HEIC" in caught.value.hint
    save(tmp_path / "a.png", 0)
    with pytest.raises(SceneError, match="1 photo; at least 3"):
        find_source(tmp_path)
    with pytest.raises(SceneError, match="single photo"):
        find_source(tmp_path / "a.png")
    for name in ("b.png", "c.png"):
        (tmp_path / name).write_bytes((tmp_path / "a.png").read_bytes())
    with pytest.raises(SceneError, match="all 3 photos are the same picture"):
        find_source(tmp_path)


def test_file_that_is_no_video_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("?")
    with pytest.raises(SceneError, match="neither a folder of photos nor a video"):
        find_source(tmp_path / "a.txt")
    with pytest.raises(SceneError, match="neither a folder of photos nor a video"):
        find_source(Path(os.devnull))

"""`raymine pack`: digests of the images of each split."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymine.cli import main
from support.depth_scene import write_depth_scene


def packed(scene: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert main(["pack", str(scene), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_digests_follow_the_content_of_each_split(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = packed(scene, capsys)
    assert first == packed(scene, capsys)
    (scene / "test/r_0.png").write_bytes((scene / "test/r_1.png").read_bytes())
    second = packed(scene, capsys)
    assert (second["train"], second["scene_digest"]) == (first["train"], first["scene_digest"])
    assert second["test"] != first["test"]
    assert "depth" not in first
    assert main(["pack", str(scene), "--downscale", "0"]) == 2
    assert main(["pack", "nowhere"]) == 3


def test_depth_maps_of_training_images_have_a_digest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_depth_scene(tmp_path / "scene", [f"d{i}.png" for i in range(9)])
    first = packed(folder, capsys)
    (folder / "d1.png").write_bytes(b"no image: only training with it refuses it")
    second = packed(folder, capsys)
    assert second.pop("depth") != first.pop("depth")
    assert second == first

"""2,000 damaged scene files: each is refused with a sentence or read rightly, and `check` and `load` agree.

Warnings of NumPy are errors here, as in every test. Pillow warns of damaged metadata, which is what it should do.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

from support.mutate import mutated_bytes, mutated_json, mutated_numbers
from support.scene_fuzz import fuzz, tiny_capture
from support.scene_writers import frames_of, write_blender, write_image, write_json, write_llff, write_transforms

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.timeout(200)]


def mutated_document(path: Path, data: bytes, random: Random) -> bytes:
    return mutated_json(json.loads(data), random) if random.random() < 0.75 else mutated_bytes(data, random)


def mutated_file(path: Path, data: bytes, random: Random) -> bytes:
    return mutated_bytes(data, random)


@pytest.mark.parametrize("part", range(2))
def test_damaged_transforms_files(part: int, tmp_path: Path) -> None:
    capture = tiny_capture()
    frames = frames_of(capture)
    frames[1] |= {"mask_path": "masks/one.png", "fl_x": 11.0, "k1": 0.01}
    write_image(tmp_path / "masks/one.png", (12, 8))
    names = [frame["file_path"] for frame in frames]
    write_transforms(
        capture,
        tmp_path,
        frames=frames,
        camera_model="OPENCV",
        k2=0.01,
        p1=0.001,
        aabb_scale=4,
        train_filenames=names[:3],
        test_filenames=names[3:],
    )
    seen = fuzz(tmp_path, [tmp_path / "transforms.json"], range(400 * part, 400 * part + 400), mutated_document)
    assert seen == {"refused", "fine"}


def test_damaged_blender_files(tmp_path: Path) -> None:
    write_blender(tiny_capture(), tmp_path)
    for split in ("train", "test"):
        path = tmp_path / f"transforms_{split}.json"
        document = json.loads(path.read_text())
        for i, frame in enumerate(document["frames"]):
            frame["time"] = i / 4
        write_json(path, document)
    files = [tmp_path / "transforms_train.json", tmp_path / "transforms_test.json"]
    assert fuzz(tmp_path, files, range(500), mutated_document) == {"refused", "fine"}


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_damaged_images(suffix: str, tmp_path: Path) -> None:
    write_transforms(tiny_capture(suffix), tmp_path)
    files = sorted((tmp_path / "images").iterdir())
    assert fuzz(tmp_path, files, range(225), mutated_file) == {"refused", "unreadable", "fine"}


def test_damaged_masks(tmp_path: Path) -> None:
    frames = frames_of(tiny_capture())
    frames[2]["mask_path"] = "masks/one.png"
    write_image(tmp_path / "masks/one.png", (12, 8))
    write_transforms(tiny_capture(), tmp_path, frames=frames)
    assert fuzz(tmp_path, [tmp_path / "masks/one.png"], range(50), mutated_file) == {"unreadable", "fine"}


def test_damaged_pose_files(tmp_path: Path) -> None:
    write_llff(tiny_capture(), tmp_path)

    def mutate(path: Path, data: bytes, random: Random) -> bytes:
        return mutated_numbers(data, random) if random.random() < 0.6 else mutated_bytes(data, random)

    assert fuzz(tmp_path, [tmp_path / "poses_bounds.npy"], range(200), mutate) == {"refused", "fine"}
    assert np.load(tmp_path / "poses_bounds.npy").shape == (4, 17)

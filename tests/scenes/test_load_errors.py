"""Scenes that cannot be read: each ends with one `SceneError` that names the file and the fault."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raymine.errors import SceneError
from raymine.scenes import check_scene, load_scene, scene_digest
from support.scene_writers import (
    frames_of,
    points_near,
    ring,
    transforms_of,
    write_colmap,
    write_image,
    write_images,
    write_json,
    write_llff,
    write_transforms,
)


def test_paths_without_a_scene_raise(tmp_path: Path):
    with pytest.raises(SceneError, match="there is no such folder"):
        load_scene(tmp_path / "nowhere")
    with pytest.raises(SceneError, match="the folder is empty"):
        load_scene(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(SceneError, match="none of the files") as error:
        load_scene(tmp_path)
    assert "poses_bounds.npy" in error.value.hint
    with pytest.raises(SceneError, match="is a file"):
        load_scene(tmp_path / "notes.txt")
    write_image(tmp_path / "images/a.png", (4, 4))
    with pytest.raises(SceneError, match="holds images but nothing that says where") as error:
        load_scene(tmp_path)
    assert "COLMAP" in error.value.hint


def test_damaged_json_error_gives_the_line_and_reason(tmp_path: Path):
    write_transforms(ring(), tmp_path)
    path = tmp_path / "transforms.json"
    text = json.dumps(json.loads(path.read_text()), indent=1)
    path.write_text(text[: text.index("photo_03")])
    line = text[: text.index("photo_03")].count("\n") + 1
    with pytest.raises(SceneError, match=rf"transforms.json: .*line {line}, column"):
        load_scene(tmp_path)
    path.write_text(text[: text.index('"frames"')])
    with pytest.raises(SceneError, match="is cut short"):
        load_scene(tmp_path)
    path.write_text("[1, 2]")
    with pytest.raises(SceneError, match="not an object"):
        load_scene(tmp_path)
    path.write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(SceneError, match="is not text"):
        load_scene(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"transform_matrix": None}, "has no `transform_matrix`"),
        ({"transform_matrix": [[1, 2], [3, 4]]}, "of shape"),
        ({"transform_matrix": "identity"}, "not a matrix of numbers"),
        ({"transform_matrix": [[math.nan] * 4] * 4}, "contains NaN"),
        ({"transform_matrix": [[None] * 4] * 4}, "contains NaN"),
        ({"transform_matrix": [[2, 0, 0, 0], [0, 2, 0, 0], [0, 0, 2, 0], [0, 0, 0, 1]]}, "scaled by 2"),
        ({"transform_matrix": [[-1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]}, "determinant -1"),
        ({"fl_x": -5}, "is not positive"),
        ({"fl_x": "wide"}, "`fl_x` = 'wide', which is not a number"),
        ({"fl_x": 1.0, "fl_y": 1.0}, "degrees, is absurd"),
        ({"cx": 900.0}, "principal point .* is far outside"),
        ({"camera_model": "SPHERICAL"}, "unknown camera model 'SPHERICAL'"),
        ({"time": 3.0}, "outside 0..1"),
    ],
)
def test_invalid_frame_error_names_the_frame(change: dict[str, Any], words: str, tmp_path: Path):
    capture = ring()
    frames = frames_of(capture)
    frames[4].update(change)
    write_transforms(capture, tmp_path, frames=frames)
    with pytest.raises(SceneError, match=words) as error:
        load_scene(tmp_path)
    assert "photo_04.png" in error.value.message
    assert f"raymine check {tmp_path}" in error.value.hint


def test_invalid_llff_files_raise(tmp_path: Path):
    capture = ring()
    write_llff(capture, tmp_path)
    (tmp_path / "images" / capture.names[3]).unlink()
    with pytest.raises(SceneError, match="9 poses for 8 images"):
        load_scene(tmp_path)
    np.save(tmp_path / "poses_bounds.npy", np.zeros((3, 12)))
    with pytest.raises(SceneError, match=r"has shape \[3, 12\]"):
        load_scene(tmp_path)
    (tmp_path / "poses_bounds.npy").write_bytes(b"nothing")
    with pytest.raises(SceneError, match="cannot be read as a NumPy array"):
        load_scene(tmp_path)


@pytest.mark.parametrize("file", ["cameras.bin", "images.bin"])
@pytest.mark.parametrize("keep", [4, 30])
def test_truncated_colmap_files_raise(file: str, keep: int, tmp_path: Path):
    write_colmap(ring(), tmp_path)
    path = tmp_path / "sparse/0" / file
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SceneError, match=f"{file}: is cut short: it ends at byte {keep}"):
        load_scene(tmp_path)


def test_truncated_colmap_points_are_a_warning(tmp_path: Path):
    write_colmap(ring(), tmp_path, points=points_near())
    path = tmp_path / "sparse/0/points3D.bin"
    path.write_bytes(path.read_bytes()[:-5])
    assert any("points3D.bin: is cut short" in w for w in load_scene(tmp_path).warnings)


def test_empty_image_file_error_names_the_file(tmp_path: Path):
    capture = ring()
    write_transforms(capture, tmp_path)
    (tmp_path / "images" / capture.names[2]).write_bytes(b"")
    with pytest.raises(SceneError, match=r"photo_02.png: is empty \(0 bytes\)"):
        load_scene(tmp_path)


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.floats(), st.text(max_size=3), st.just([]), st.just({}),
    st.just([[1.0]]), st.just(1e308), st.just([None, "x", 3]),
)  # fmt: skip
KEYS = [
    "w",
    "h",
    "fl_x",
    "cx",
    "k1",
    "k4",
    "p1",
    "camera_model",
    "is_fisheye",
    "aabb_scale",
    "camera_angle_x",
    "frames",
]
FRAME_KEYS = ["file_path", "transform_matrix", "time", "mask_path", "fl_x", "h", "cx", "k2"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_odd_values_load_or_raise_scene_error(data: st.DataObject, tmp_path: Path):
    capture = ring(4)
    if not (tmp_path / "images").exists():
        write_images(capture, tmp_path / "images")
    document = transforms_of(capture)
    document.update(data.draw(st.dictionaries(st.sampled_from([*KEYS, "frames", "train_filenames"]), ODD, max_size=2)))
    if isinstance(document["frames"], list) and len(document["frames"]) == 4:
        change = data.draw(st.dictionaries(st.sampled_from(FRAME_KEYS), ODD, max_size=2))
        document["frames"][1].update(change)
        row = data.draw(st.integers(0, 2))
        document["frames"][2]["transform_matrix"][row][3] = data.draw(st.floats())
    write_json(tmp_path / "transforms.json", document)
    errors = [p for p in check_scene(tmp_path) if p.severity == "error"]
    # Only `check_scene` opens masks.
    if any(p.kind != "mask" for p in errors):
        with pytest.raises(SceneError, match=str(tmp_path)):
            load_scene(tmp_path)
        return
    scene = load_scene(tmp_path)
    assert all(np.isfinite(f.pose).all() for f in scene.frames)
    assert len(scene_digest(scene)) == 64

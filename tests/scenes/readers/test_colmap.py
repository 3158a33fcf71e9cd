"""COLMAP models in binary and text: camera models, and depth ranges from scene points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raymine.errors import SceneError
from raymine.scenes import load_scene
from support.scene_writers import (
    ring,
    write_colmap,
)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(
    ("name", "number", "parameters", "model", "distortion"),
    [
        ("SIMPLE_PINHOLE", 0, [40, 24, 16], "pinhole", ()),
        ("PINHOLE", 1, [40, 40, 24, 16], "pinhole", ()),
        ("SIMPLE_RADIAL", 2, [40, 24, 16, 0.1], "opencv", (0.1, 0, 0, 0, 0)),
        ("RADIAL", 3, [40, 24, 16, 0.1, 0.02], "opencv", (0.1, 0.02, 0, 0, 0)),
        ("OPENCV", 4, [40, 40, 24, 16, 0.1, 0.02, 0.003, 0.004], "opencv", (0.1, 0.02, 0.003, 0.004, 0)),
        ("OPENCV_FISHEYE", 5, [40, 40, 24, 16, 0.1, 0.02, 0.003, 0.004], "fisheye", (0.1, 0.02, 0.003, 0.004)),
        ("FULL_OPENCV", 6, [40, 40, 24, 16, 0.1, 0.02, 0, 0, 0.05, 0, 0, 0], "opencv", (0.1, 0.02, 0, 0, 0.05)),
        ("SIMPLE_RADIAL_FISHEYE", 8, [40, 24, 16, 0.1], "fisheye", (0.1, 0, 0, 0)),
        ("RADIAL_FISHEYE", 9, [40, 24, 16, 0.1, 0.02], "fisheye", (0.1, 0.02, 0, 0)),
    ],
)  # fmt: skip
def test_colmap_camera_models_are_converted(name, number, parameters, model, distortion, binary, tmp_path: Path):
    write_colmap(ring(3), tmp_path, binary=binary, model=(name, number, parameters))
    camera = load_scene(tmp_path).cameras[0]
    assert (camera.fx, camera.fy, camera.cx, camera.cy) == (40, 40, 24, 16)
    assert camera.model == model
    assert camera.distortion == pytest.approx(distortion)


@pytest.mark.parametrize(("name", "number"), [("FOV", 7), ("THIN_PRISM_FISHEYE", 10), ("MYSTERY", 77)])
@pytest.mark.parametrize("binary", [True, False])
def test_unsupported_colmap_model_raises_with_its_name(name: str, number: int, binary: bool, tmp_path: Path):
    count = {7: 5, 10: 12}.get(number, 3)
    write_colmap(ring(3), tmp_path, binary=binary, model=(name, number, [40.0] * count))
    with pytest.raises(SceneError, match=r"model (number 77|FOV|THIN_PRISM_FISHEYE|MYSTERY)") as error:
        load_scene(tmp_path)
    assert "OPENCV_FISHEYE" in error.value.hint


@pytest.mark.parametrize("binary", [True, False])
def test_colmap_points_set_the_depth_range(binary: bool, tmp_path: Path):
    rng = np.random.default_rng(0)
    points = np.array([2.0, -1.0, 5.0]) + rng.normal(size=(200, 3)) * 0.3
    scene = load_scene(write_colmap(ring(), tmp_path, binary=binary, points=points))
    assert any("content is near" in d for d in scene.decisions)
    assert scene.bounds.levels == 2
    assert 0.05 <= scene.bounds.near <= 0.2

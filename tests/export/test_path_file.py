"""Camera path files: supported formats, and error messages."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raymine.cameras import similarity
from raymine.errors import ConfigError
from raymine.export import from_file, interpolate_poses, orbit, to_file
from raymine.export.paths import CameraPath, with_fov
from support.novel_views import CAMERA, forward_scene, make_scene, ring


def rows(pose: np.ndarray) -> list[list[float]]:
    return [*pose.tolist(), [0.0, 0.0, 0.0, 1.0]]


def write(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_transforms_file_is_normalised_like_the_scene(tmp_path: Path) -> None:
    quarter = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = 0.5 * quarter, [1.0, 2.0, 3.0]
    poses = ring(np.zeros(3), 2.0, 0.3, np.array([0.0, 1.0]))
    scene = make_scene(poses, normalisation=matrix)
    file = write(
        tmp_path / "p.json", {"camera_angle_x": math.pi / 2, "frames": [{"transform_matrix": rows(p)} for p in poses]}
    )
    path = from_file(file, scene)
    assert len(path) == 2
    assert np.allclose(path.poses[1][:, :3], quarter @ poses[1][:, :3])
    assert np.allclose(path.poses[1][:, 3], 0.5 * quarter @ poses[1][:, 3] + [1, 2, 3])
    assert path.cameras[0].fx == pytest.approx(20.0)
    own = write(tmp_path / "own.json", {"world": "raymine", "frames": [{"transform_matrix": rows(poses[0])}]})
    assert np.allclose(from_file(own, scene).poses[0], poses[0])


def test_camera_path_file_sets_field_of_view_size_and_keyframes(tmp_path: Path) -> None:
    poses = ring(np.zeros(3), 2.0, 0.3, np.array([0.0, 1.0, 2.0]))
    flat = [
        {"camera_to_world": np.array(rows(p)).reshape(-1).tolist(), "fov": 60 + 30 * i} for i, p in enumerate(poses)
    ]
    scene = make_scene(poses)
    file = write(tmp_path / "c.json", {"render_width": 64, "render_height": 48, "camera_path": flat})
    path = from_file(file, scene)
    assert [(c.width, c.height) for c in path.cameras] == [(64, 48)] * 3
    assert path.cameras[1].fy == pytest.approx(24.0)
    assert np.allclose(path.poses, poses)
    longer = from_file(file, scene, n=5, size=(32, 16))
    assert len(longer) == 5
    assert longer.cameras[2].fy == pytest.approx(8.0)
    keyframes = write(
        tmp_path / "k.json", {"keyframes": [{"matrix": e["camera_to_world"]} for e in flat], "is_cycle": True}
    )
    assert len(from_file(keyframes, scene)) == 120
    assert np.allclose(from_file(keyframes, scene, n=6).poses[::2], poses)


def test_example_of_the_documentation_is_a_path(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "paths.md").read_text()
    file = tmp_path / "p.json"
    file.write_text(page.partition("```json\n")[2].partition("```")[0])
    path = from_file(file, make_scene(ring(np.zeros(3), 2.0, 0.3, np.arange(3.0)), dynamic=True))
    assert [(camera.width, camera.height) for camera in path.cameras] == [(640, 480)] * 2
    assert path.cameras[0].fy == pytest.approx(700.0)
    assert path.cameras[1].fy == pytest.approx(240 / math.tan(math.radians(35 / 2)))
    assert path.poses[1][:, 3].tolist() == [0.6, -3.0, 0.2]


def test_path_file_times_are_used_in_dynamic_scenes_only(tmp_path: Path) -> None:
    poses = ring(np.zeros(3), 2.0, 0.3, np.array([0.0, 1.0]))
    frames = [{"transform_matrix": rows(p), "time": t} for p, t in zip(poses, (0.25, 0.75), strict=True)]
    file = write(tmp_path / "t.json", {"frames": frames})
    assert from_file(file, make_scene(poses)).times is None
    times = from_file(file, make_scene(poses, dynamic=True), n=3).times
    assert times is not None
    assert times.tolist() == [0.25, 0.5, 0.75]
    file.write_text(json.dumps({"frames": [*frames, {"transform_matrix": rows(poses[0]), "time": 2}]}))
    assert from_file(file, make_scene(poses)).times is None
    with pytest.raises(ConfigError, match=r"frames\[2\]: `time` must be in 0\.\.1, got 2: 0 is the first moment"):
        from_file(file, make_scene(poses, dynamic=True))


def test_written_path_is_in_the_world_of_the_files_and_reads_back(tmp_path: Path) -> None:
    turn = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    poses = ring(np.zeros(3), 1.0, 0.3, np.linspace(0.0, 6.0, 7))
    scene = make_scene(poses, normalisation=similarity(turn, np.array([10.0, -20.0, 30.0]), 0.25), dynamic=True)
    path = orbit(scene, 5, size=(32, 20))
    to_file(path, scene, tmp_path / "p.json")
    stored = json.loads((tmp_path / "p.json").read_text())
    matrix = np.array(stored["frames"][2]["transform_matrix"])
    assert np.allclose(matrix[:3, 3], turn.T @ path.poses[2][:, 3] / 0.25 + [10.0, -20.0, 30.0])
    assert np.allclose(matrix[:3, :3], turn.T @ path.poses[2][:, :3])
    again = from_file(tmp_path / "p.json", scene)
    assert np.abs(again.poses - path.poses).max() < 1e-12
    assert path.times is not None
    assert again.times is not None
    assert np.array_equal(again.times, path.times)
    for camera, back in zip(path.cameras, again.cameras, strict=True):
        assert (back.width, back.height) == (32, 20)
        assert (back.fx, back.fy) == pytest.approx((camera.fx, camera.fy), rel=1e-12)


def test_written_path_keeps_a_field_of_view_that_changes(tmp_path: Path) -> None:
    scene = forward_scene()
    cameras = tuple(with_fov(CAMERA, fov) for fov in (30.0, 45.0, 60.0))
    poses = interpolate_poses(np.stack([frame.pose for frame in scene.frames]), 3)
    to_file(CameraPath(poses, cameras), scene, tmp_path / "p.json")
    again = from_file(tmp_path / "p.json", scene).cameras
    assert [camera.fy for camera in again] == pytest.approx([camera.fy for camera in cameras])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"frames": [', "is cut short: the JSON ends at line 1, column 13"),
        ("[1, 2]", "must hold a JSON object, got list"),
        ("{}", "has none of the lists `frames`, `camera_path`, `keyframes`"),
        ('{"frames": []}', "has none of the lists"),
        ('{"frames": {"a": 1}}', "`frames` must be a list, got dict"),
        ('{"frames": [3]}', r"frames\[0\] must be an object, got int"),
        ('{"frames": [{"time": 0}]}', r"frames\[0\] has no `transform_matrix`"),
        ('{"frames": [{"transform_matrix": [1, 2]}]}', "16 numbers .*, got 2"),
        ('{"frames": [{"transform_matrix": [[1], [1, 2]]}]}', "16 numbers"),
        ('{"frames": [{"transform_matrix": [1,0,0,NaN, 0,1,0,0, 0,0,1,0]}]}', "contains NaN"),
        ('{"frames": [{"transform_matrix": [1e308,0,0,0, 0,1,0,0, 0,0,1,0]}]}', "beyond any scene"),
        ('{"frames": [{"transform_matrix": [2,0,0,0, 0,2,0,0, 0,0,2,0]}]}', "its rotation is scaled by 2"),
        ('{"frames": [{"transform_matrix": [1,0,0,0, 0,1,0,0, 0,0,-1,0]}]}', "determinant -1"),
        ('{"camera_path": [{"camera_to_world": [1,0,0,0, 0,1,0,0, 0,0,1,0], "fov": 500}]}', "1 to 170; got 500"),
        ('{"camera_path": [{"camera_to_world": [1,0,0,0, 0,1,0,0, 0,0,1,0], "fov": "x"}]}', "finite number, got 'x'"),
    ],
)
def test_invalid_path_file_error_names_the_problem(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        from_file(file, forward_scene())
    assert "bad.json" in caught.value.message


def test_missing_or_binary_path_file_raises(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No camera path file"):
        from_file(tmp_path / "none.json", forward_scene())
    with pytest.raises(ConfigError, match="is a folder, not a file"):
        from_file(tmp_path, forward_scene())
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ConfigError, match="is not text"):
        from_file(tmp_path / "b.json", forward_scene())
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ConfigError, match="is a pipe, not a file"):
        from_file(tmp_path / "pipe.json", forward_scene())


def test_byte_order_mark_of_a_path_file_is_skipped(tmp_path: Path) -> None:
    text = '{"frames": [{"transform_matrix": [1,0,0,0, 0,1,0,0, 0,0,1,0]}]}'
    (tmp_path / "mark.json").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert len(from_file(tmp_path / "mark.json", forward_scene()).poses) == 1

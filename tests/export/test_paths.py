"""Novel views: paths checked by geometry, path files by what they say, videos by opening them again."""

from __future__ import annotations

import builtins
import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raymine.contracts import Bounds, Camera, Frame, Rays, Rendered, Scene
from raymine.errors import ConfigError, MissingExtraError, ResourceError
from raymine.export import (
    from_file,
    interpolate,
    orbit,
    render_path,
    spiral,
    video,
    write_frames,
    write_mp4,
    write_videos,
)
from raymine.export.paths import CameraPath, focus_point, forward_facing, look_at, novel_camera

CAMERA = Camera(40, 30, 50.0, 50.0, 20.0, 15.0)


def make_scene(poses: list[np.ndarray], *, dynamic: bool = False, normalisation: np.ndarray | None = None) -> Scene:
    frames = tuple(
        Frame(Path(f"{i}.png"), 0, pose, time=i / len(poses) if dynamic else None) for i, pose in enumerate(poses)
    )
    return Scene(
        root=Path("scene"),
        format="test",
        cameras=(CAMERA,),
        frames=frames,
        bounds=Bounds(),
        background=(1.0, 1.0, 1.0),
        normalisation=np.eye(4) if normalisation is None else normalisation,
    )


def ring(target: np.ndarray, radius: float, elevation: float, azimuths: np.ndarray) -> list[np.ndarray]:
    cos, sin = math.cos(elevation), math.sin(elevation)
    return [look_at(target + radius * np.array([cos * math.cos(a), cos * math.sin(a), sin]), target) for a in azimuths]


def assert_rigid(poses: np.ndarray) -> None:
    rotations = poses[:, :, :3]
    assert np.abs(rotations @ rotations.transpose(0, 2, 1) - np.eye(3)).max() < 1e-9
    assert np.allclose(np.linalg.det(rotations), 1.0)


def axis_distance(pose: np.ndarray, point: np.ndarray) -> float:
    """How far the optical axis passes from a point in front of the camera."""
    offset, forward = point - pose[:, 3], -pose[:, 2]
    assert offset @ forward > 0
    return float(np.linalg.norm(offset - (offset @ forward) * forward))


def test_look_at_looks_and_stays_upright() -> None:
    pose = look_at(np.array([3.0, 0.0, 0.0]), np.zeros(3))
    assert np.allclose(pose[:, 2], [1, 0, 0])
    assert np.allclose(pose[:, 1], [0, 0, 1])
    assert np.allclose(pose[:, 0], [0, 1, 0])
    assert_rigid(look_at(np.array([0.0, 0.0, 2.0]), np.zeros(3))[None])


def test_orbit_is_a_level_circle_around_the_focus() -> None:
    centre = np.array([0.3, -0.2, 0.5])
    scene = make_scene(ring(centre, 3.0, 0.4, np.linspace(0, 2 * np.pi, 12, endpoint=False)))
    path = orbit(scene, 36)
    assert_rigid(path.poses)
    positions = path.poses[:, :, 3]
    assert np.allclose(np.linalg.norm(positions - centre, axis=1), 3.0)
    assert np.allclose(positions[:, 2], centre[2] + 3.0 * math.sin(0.4))
    assert max(axis_distance(pose, centre) for pose in path.poses) < 1e-9
    angles = np.unwrap(np.arctan2(positions[:, 1] - centre[1], positions[:, 0] - centre[0]))
    assert np.allclose(np.diff(angles), 2 * np.pi / 36)
    assert path.times is None
    assert path.cameras[0] == CAMERA


def test_orbit_swings_over_the_part_that_was_photographed() -> None:
    seen = np.linspace(2.8, 4.2, 9)  # across the jump of arctan2 at pi
    path = orbit(make_scene(ring(np.zeros(3), 2.0, 0.2, seen)), 40)
    angles = np.arctan2(path.poses[:, 1, 3], path.poses[:, 0, 3]) % (2 * np.pi)
    assert angles.min() == pytest.approx(2.8)
    assert angles.max() == pytest.approx(4.2)
    assert angles[0] == pytest.approx(3.5)


def test_orbit_of_one_overhead_camera_is_still_a_path() -> None:
    path = orbit(make_scene([look_at(np.array([0.0, 0.0, 2.0]), np.zeros(3))]), 5)
    assert_rigid(path.poses)


def test_dynamic_scene_runs_time_from_zero_to_one() -> None:
    scene = make_scene(ring(np.zeros(3), 2.0, 0.2, np.arange(5.0)), dynamic=True)
    times = orbit(scene, 5).times
    assert times is not None
    assert times.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def forward_scene() -> Scene:
    grid = [(x, z) for x in (-0.4, 0.0, 0.4) for z in (-0.2, 0.0, 0.2)]
    return make_scene([look_at(np.array([x, 4.0, z]), np.array([x, 0.0, z])) for x, z in grid])


def test_spiral_stays_near_the_cameras_and_looks_at_one_point() -> None:
    scene = forward_scene()
    assert forward_facing(scene)
    path = spiral(scene, 30)
    assert_rigid(path.poses)
    positions = path.poses[:, :, 3]
    assert np.abs(positions[:, 0]).max() <= 0.4 + 1e-9
    assert np.abs(positions[:, 0]).max() > 0.35
    assert np.abs(positions[:, 2]).max() <= 0.2 + 1e-9
    # The axes are parallel, so the focus is the world's origin, where normalisation puts the subject.
    assert max(axis_distance(pose, np.zeros(3)) for pose in path.poses) < 1e-9


def test_inward_capture_is_not_forward_facing() -> None:
    assert not forward_facing(make_scene(ring(np.zeros(3), 2.0, 0.2, np.arange(6.0))))


def test_focus_point_of_crossing_axes() -> None:
    target = np.array([0.5, 0.25, -1.0])
    assert np.allclose(focus_point(np.stack(ring(target, 2.0, 0.3, np.arange(5.0)))), target)


def test_novel_camera_keeps_the_vertical_view_and_square_pixels() -> None:
    camera = novel_camera(Camera(40, 30, 50.0, 50.0, 18.0, 16.0, "opencv", (0.1, 0, 0, 0, 0)), (120, 60))
    assert camera == Camera(120, 60, 100.0, 100.0, 60.0, 30.0)
    fisheye = novel_camera(Camera(100, 100, 20.0, 20.0, 50.0, 50.0, "fisheye", (0.0, 0.0, 0.0, 0.0)))
    assert 2 * math.degrees(math.atan(50 / fisheye.fy)) == pytest.approx(110.0)
    with pytest.raises(ConfigError, match="0x5"):
        novel_camera(CAMERA, (0, 5))


def test_interpolation_passes_through_the_keys_smoothly() -> None:
    keys = np.stack(ring(np.zeros(3), 2.0, 0.3, np.array([0.0, 0.7, 1.9, 2.4])))
    curve = interpolate(keys, 301)
    assert_rigid(curve)
    assert np.allclose(curve[::100], keys)
    velocity = np.diff(curve[:, :, 3], axis=0)
    assert np.linalg.norm(np.diff(velocity, axis=0), axis=1).max() < 1e-3, "the curve has a corner"


def test_interpolation_of_rotation_takes_the_short_way() -> None:
    def turned(angle: float) -> np.ndarray:
        c, s = math.cos(angle), math.sin(angle)
        return np.array([[c, -s, 0.0, 0.0], [s, c, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])

    middle = interpolate(np.stack([turned(math.radians(170)), turned(math.radians(-170))]), 3)[1]
    assert np.allclose(middle, turned(math.pi))


def test_interpolation_edge_cases() -> None:
    keys = np.stack(ring(np.zeros(3), 2.0, 0.3, np.array([0.0, 2.0, 4.0])))
    closed = interpolate(keys, 6, closed=True)
    assert np.allclose(closed[::2], keys)
    assert np.allclose(interpolate(keys[:1], 4), keys[:1].repeat(4, axis=0))
    assert np.allclose(interpolate(keys, 1)[0], keys[0])
    with pytest.raises(ConfigError, match="at least 1 frame, got 0"):
        interpolate(keys, 0)


def rows(pose: np.ndarray) -> list[list[float]]:
    return [*pose.tolist(), [0.0, 0.0, 0.0, 1.0]]


def write(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_transforms_file_is_normalised_like_the_scene(tmp_path: Path) -> None:
    quarter = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    similarity = np.eye(4)
    similarity[:3, :3], similarity[:3, 3] = 0.5 * quarter, [1.0, 2.0, 3.0]
    poses = ring(np.zeros(3), 2.0, 0.3, np.array([0.0, 1.0]))
    scene = make_scene(poses, normalisation=similarity)
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


def test_camera_path_file_with_fov_and_size(tmp_path: Path) -> None:
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


def test_times_in_a_path_file(tmp_path: Path) -> None:
    poses = ring(np.zeros(3), 2.0, 0.3, np.array([0.0, 1.0]))
    frames = [{"transform_matrix": rows(p), "time": t} for p, t in zip(poses, (0.25, 0.75), strict=True)]
    file = write(tmp_path / "t.json", {"frames": frames})
    assert from_file(file, make_scene(poses)).times is None
    times = from_file(file, make_scene(poses, dynamic=True), n=3).times
    assert times is not None
    assert times.tolist() == [0.25, 0.5, 0.75]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"frames": [', "is not valid JSON: .* at line 1, column 13"),
        ("[1, 2]", "must hold a JSON object, got list"),
        ("{}", "has none of the lists `frames`, `camera_path`, `keyframes`"),
        ('{"frames": []}', "has none of the lists"),
        ('{"frames": {"a": 1}}', "`frames` must be a list, got dict"),
        ('{"frames": [3]}', r"frames\[0\] must be an object, got int"),
        ('{"frames": [{"time": 0}]}', r"frames\[0\] has no `transform_matrix`"),
        ('{"frames": [{"transform_matrix": [1, 2]}]}', "16 numbers .*, got 2"),
        ('{"frames": [{"transform_matrix": [[1], [1, 2]]}]}', "16 numbers"),
        ('{"frames": [{"transform_matrix": [1,0,0,NaN, 0,1,0,0, 0,0,1,0]}]}', "not finite"),
        ('{"frames": [{"transform_matrix": [2,0,0,0, 0,2,0,0, 0,0,2,0]}]}', "must be a rotation; it deviates by 3"),
        ('{"frames": [{"transform_matrix": [1,0,0,0, 0,1,0,0, 0,0,-1,0]}]}', "determinant -1"),
        ('{"camera_path": [{"camera_to_world": [1,0,0,0, 0,1,0,0, 0,0,1,0], "fov": 500}]}', "1 to 170; got 500"),
        ('{"camera_path": [{"camera_to_world": [1,0,0,0, 0,1,0,0, 0,0,1,0], "fov": "x"}]}', "finite number, got 'x'"),
    ],
)
def test_bad_path_files_say_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        from_file(file, forward_scene())
    assert "bad.json" in caught.value.message


def test_missing_and_binary_path_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No camera path file"):
        from_file(tmp_path / "none.json", forward_scene())
    with pytest.raises(ConfigError, match="Cannot read"):
        from_file(tmp_path, forward_scene())
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ConfigError, match="not a JSON text file"):
        from_file(tmp_path / "b.json", forward_scene())


def test_camera_path_record_refuses_bad_shapes() -> None:
    with pytest.raises(ConfigError, match="shape"):
        CameraPath(np.zeros((0, 3, 4)), ())
    with pytest.raises(ConfigError, match="needs 1 cameras"):
        CameraPath(np.zeros((1, 3, 4)), ())
    with pytest.raises(ConfigError, match="not finite"):
        CameraPath(np.full((1, 3, 4), np.nan), (CAMERA,))


class Sphere:
    """A red unit ball at the origin, by ray intersection."""

    def render(self, rays: Rays, background: Tensor) -> Rendered:
        along = -(rays.origins * rays.directions).sum(1)
        closest = (rays.origins + along[:, None] * rays.directions).norm(dim=1)
        hit = (closest < 1.0) & (along > 0)
        depth = along - (1.0 - closest.square()).clamp_min(0).sqrt()
        colour = torch.where(hit[:, None], torch.tensor([1.0, 0.0, 0.0]), background)
        return Rendered(colour, hit.float(), torch.where(hit, depth, 0.0), torch.empty(0))


def test_rendered_path_shows_the_ball_in_the_middle(tmp_path: Path) -> None:
    scene = make_scene(ring(np.zeros(3), 4.0, 0.3, np.linspace(0, 6.28, 8, endpoint=False)))
    calls: list[tuple[int, int]] = []
    path = orbit(scene, 3)
    frames = list(
        render_path(
            Sphere(), path, scene.bounds, background=(1.0, 1.0, 1.0), progress=lambda d, n: calls.append((d, n))
        )
    )
    assert calls == [(1, 3), (2, 3), (3, 3)]
    for frame in frames:
        assert frame.colour.shape == frame.depth.shape == frame.opacity.shape == (30, 40, 3)
        assert frame.colour[15, 20].tolist() == [255, 0, 0]
        assert frame.colour[0, 0].tolist() == [255, 255, 255]
        assert frame.opacity[15, 20].tolist() == [255, 255, 255]
        assert frame.depth[0, 0].tolist() == [0, 0, 0]
        middle, edge = frame.depth[15, 20].astype(int).sum(), frame.depth[15, 8].astype(int).sum()
        assert middle > edge > 0, "near is lighter than far"
    written = write_frames(frames, tmp_path / "out", kinds=("colour", "depth"))
    assert [p.name for p in written] == [f"{k}-{i:04d}.png" for i in range(3) for k in ("colour", "depth")]
    assert all(p.is_file() for p in written)


def test_mp4_has_every_frame_its_rate_and_its_colours(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    target = tmp_path / "deep" / "x.mp4"
    frames = [np.full((31, 45, 3), (200, 30, 5 * i), np.uint8) for i in range(12)]
    assert write_mp4(iter(frames), target, fps=24) == 12
    assert os.listdir(target.parent) == ["x.mp4"]
    with av.open(str(target)) as container:
        stream = container.streams.video[0]
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        assert (stream.codec_context.name, stream.pix_fmt, stream.average_rate) == ("h264", "yuv420p", 24)
    assert len(decoded) == 12
    assert decoded[0].shape == (32, 46, 3)
    for wanted, got in zip(frames, decoded, strict=True):
        assert np.abs(got[10, 10].astype(int) - wanted[10, 10].astype(int)).max() <= 6
        assert np.abs(got[31, 45].astype(int) - wanted[30, 44].astype(int)).max() <= 6


def test_one_pass_writes_a_video_per_kind(tmp_path: Path) -> None:
    pytest.importorskip("av")
    scene = make_scene(ring(np.zeros(3), 4.0, 0.3, np.arange(5.0)))
    views = render_path(Sphere(), orbit(scene, 3), scene.bounds, background=(0.0, 0.0, 0.0))
    written = write_videos(views, tmp_path / "x.mp4", kinds=("colour", "depth", "opacity"))
    assert [p.name for p in written] == ["x.mp4", "x-depth.mp4", "x-opacity.mp4"]
    assert [video.count_frames(p) for p in written] == [3, 3, 3]


def test_mp4_refuses_nonsense_and_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("av")
    target = tmp_path / "x.mp4"
    with pytest.raises(ConfigError, match="no frame to write"):
        write_mp4([], target)
    with pytest.raises(ConfigError, match=r"`fps` must be between 0.1 and 1000, got 0"):
        write_mp4([np.zeros((4, 4, 3), np.uint8)], target, fps=0)
    with pytest.raises(ConfigError, match=r"Frame 1 has shape \(6, 4, 3\), the first one \(4, 4, 3\)"):
        write_mp4([np.zeros((4, 4, 3), np.uint8), np.zeros((6, 4, 3), np.uint8)], target)
    assert os.listdir(tmp_path) == []


def test_mp4_interrupted_keeps_the_old_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    target = tmp_path / "x.mp4"
    frames = [np.zeros((4, 4, 3), np.uint8)] * 3
    write_mp4(frames, target)
    before = target.read_bytes()

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(ResourceError, match="Cannot write the video: no space left on the disk"):
        write_mp4(frames, target)
    monkeypatch.undo()
    monkeypatch.setattr(video, "count_frames", lambda path: 2)
    with pytest.raises(ResourceError, match="was written with 3 frames but holds 2"):
        write_mp4(frames, target)
    assert target.read_bytes() == before
    assert os.listdir(tmp_path) == ["x.mp4"]


def test_missing_av_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_av(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "av":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_av)
    with pytest.raises(MissingExtraError, match=r"Writing MP4 needs the package `av`.*\n.*raymine\[video\]"):
        write_mp4([np.zeros((4, 4, 3), np.uint8)], tmp_path / "x.mp4")

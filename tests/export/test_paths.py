"""Paths for novel views, checked by geometry."""

from __future__ import annotations

import math

import numpy as np
import pytest

from raymine.cameras import look_at
from raymine.contracts import Camera
from raymine.errors import ConfigError
from raymine.export import orbit, spiral
from raymine.export.paths import CameraPath, focus_point, forward_facing, novel_camera
from support.novel_views import CAMERA, assert_rigid, forward_scene, make_scene, ring


def axis_distance(pose: np.ndarray, point: np.ndarray) -> float:
    """Distance of the optical axis from a point in front of the camera."""
    offset, forward = point - pose[:, 3], -pose[:, 2]
    assert offset @ forward > 0
    return float(np.linalg.norm(offset - (offset @ forward) * forward))


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


def test_orbit_swings_over_the_photographed_arc() -> None:
    seen = np.linspace(2.8, 4.2, 9)  # across the jump of arctan2 at pi
    path = orbit(make_scene(ring(np.zeros(3), 2.0, 0.2, seen)), 40)
    angles = np.arctan2(path.poses[:, 1, 3], path.poses[:, 0, 3]) % (2 * np.pi)
    assert angles.min() == pytest.approx(2.8)
    assert angles.max() == pytest.approx(4.2)
    assert angles[0] == pytest.approx(3.5)


def test_orbit_of_one_overhead_camera_has_rigid_poses() -> None:
    path = orbit(make_scene([look_at(np.array([0.0, 0.0, 2.0]), np.zeros(3))]), 5)
    assert_rigid(path.poses)


def test_orbit_of_a_dynamic_scene_runs_time_from_zero_to_one() -> None:
    scene = make_scene(ring(np.zeros(3), 2.0, 0.2, np.arange(5.0)), dynamic=True)
    times = orbit(scene, 5).times
    assert times is not None
    assert times.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_spiral_stays_near_the_cameras_and_looks_at_one_point() -> None:
    scene = forward_scene()
    assert forward_facing(scene)
    path = spiral(scene, 30)
    assert_rigid(path.poses)
    positions = path.poses[:, :, 3]
    assert np.abs(positions[:, 0]).max() <= 0.4 + 1e-9
    assert np.abs(positions[:, 0]).max() > 0.35
    assert np.abs(positions[:, 2]).max() <= 0.2 + 1e-9
    # The axes are parallel, so the focus is the origin, where normalisation puts the subject.
    assert max(axis_distance(pose, np.zeros(3)) for pose in path.poses) < 1e-9


def test_spiral_around_inward_cameras_stays_upright_and_on_the_scene() -> None:
    centre = np.array([0.3, -0.2, 0.5])
    azimuths = np.linspace(0, 2 * np.pi, 12, endpoint=False)
    poses = [pose for elevation in (0.1, 0.5, 0.9) for pose in ring(centre, 3.0, elevation, azimuths)]
    path = spiral(make_scene(poses), 48)
    assert_rigid(path.poses)
    offsets = path.poses[:, :, 3] - centre
    assert np.allclose(np.linalg.norm(offsets, axis=1), 3.0)
    assert max(axis_distance(pose, centre) for pose in path.poses) < 1e-6
    assert np.abs(path.poses[:, 2, 0]).max() < 1e-9, "the right of every picture is level"
    assert path.poses[:, 2, 1].min() > 0.5, "up in every picture is up in the scene"
    elevation = np.arcsin(offsets[:, 2] / 3.0)
    assert (elevation.min(), elevation.max()) == pytest.approx((0.1, 0.9))
    turned = np.unwrap(np.arctan2(offsets[:, 1], offsets[:, 0]))
    assert np.allclose(np.diff(turned), 2 * 2 * np.pi / 48)


@pytest.mark.parametrize("size", [(100_000, 100_000), (1 << 26, 1), (10**300, 10**300)])
def test_absurd_picture_sizes_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="million pixels, such as 7680x4320") as caught:
        novel_camera(CAMERA, size)
    assert "`size`" in caught.value.hint


@pytest.mark.parametrize("n", [0, -3, 100_001])
def test_absurd_numbers_of_views_are_refused(n: int) -> None:
    for path in (orbit, spiral):
        with pytest.raises(ConfigError, match=f"`frames` must be between 1 and 100000, got {n}"):
            path(forward_scene(), n)


def test_inward_capture_is_not_forward_facing() -> None:
    assert not forward_facing(make_scene(ring(np.zeros(3), 2.0, 0.2, np.arange(6.0))))


def test_focus_point_is_where_optical_axes_cross() -> None:
    target = np.array([0.5, 0.25, -1.0])
    assert np.allclose(focus_point(np.stack(ring(target, 2.0, 0.3, np.arange(5.0)))), target)


def test_novel_camera_keeps_vertical_field_of_view_and_square_pixels() -> None:
    camera = novel_camera(Camera(40, 30, 50.0, 50.0, 18.0, 16.0, "opencv", (0.1, 0, 0, 0, 0)), (120, 60))
    assert camera == Camera(120, 60, 100.0, 100.0, 60.0, 30.0)
    fisheye = novel_camera(Camera(100, 100, 20.0, 20.0, 50.0, 50.0, "fisheye", (0.0, 0.0, 0.0, 0.0)))
    assert 2 * math.degrees(math.atan(50 / fisheye.fy)) == pytest.approx(110.0)
    with pytest.raises(ConfigError, match="0x5"):
        novel_camera(CAMERA, (0, 5))


def test_camera_path_rejects_bad_shapes_and_non_finite_poses() -> None:
    with pytest.raises(ConfigError, match="shape"):
        CameraPath(np.zeros((0, 3, 4)), ())
    with pytest.raises(ConfigError, match="needs 1 cameras"):
        CameraPath(np.zeros((1, 3, 4)), ())
    with pytest.raises(ConfigError, match="not finite"):
        CameraPath(np.full((1, 3, 4), np.nan), (CAMERA,))

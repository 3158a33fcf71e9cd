"""Camera poses: conversions by hand and round trips, invalid poses, similarities, and image rotation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from raymine.cameras import (
    apply_similarity,
    from_colmap,
    from_llff,
    from_opencv,
    look_at,
    matrix_to_quaternion,
    pose_fault,
    project,
    quaternion_to_matrix,
    similarity,
    to_colmap,
    to_llff,
    turn_clockwise,
    unproject,
)
from raymine.contracts import Camera
from raymine.errors import ConfigError
from support.cameras import FISHEYE, OPENCV, PINHOLE, random_pose


def test_from_colmap_matches_hand_computed_pose():
    # World-to-camera without rotation, camera at (1, 2, 3): t = -centre. OpenCV looks along +z with y down.
    pose = from_colmap(np.array([1.0, 0, 0, 0]), np.array([-1.0, -2.0, -3.0]))
    expected = np.array([[1, 0, 0, 1], [0, -1, 0, 2], [0, 0, -1, 3]], dtype=float)
    np.testing.assert_allclose(pose, expected)
    # A quarter turn about z: (w, x, y, z) = (cos 45, 0, 0, sin 45) takes x to y.
    half = math.sqrt(0.5)
    np.testing.assert_allclose(quaternion_to_matrix(np.array([half, 0, 0, half])) @ [1, 0, 0], [0, 1, 0], atol=1e-12)


def test_from_llff_matches_hand_computed_pose():
    # Columns [down, right, back]: a camera whose right is +x, up +y, back +z.
    llff = np.array([[0, 1, 0, 5], [-1, 0, 0, 6], [0, 0, 1, 7]], dtype=float)
    np.testing.assert_allclose(from_llff(llff), np.array([[1, 0, 0, 5], [0, 1, 0, 6], [0, 0, 1, 7]], dtype=float))


@pytest.mark.parametrize("seed", range(5))
def test_pose_conversions_round_trip(seed: int):
    pose = random_pose(seed)
    np.testing.assert_allclose(from_colmap(*to_colmap(pose)), pose, atol=1e-12)
    np.testing.assert_allclose(from_llff(to_llff(pose)), pose, atol=1e-12)
    np.testing.assert_allclose(from_opencv(from_opencv(pose)), pose, atol=1e-12)


@pytest.mark.parametrize("axis", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.6, 0.8, 0)])
def test_quaternion_of_a_half_turn_round_trips(axis: tuple[float, float, float]):
    rotation = 2 * np.outer(axis, axis) - np.eye(3)
    np.testing.assert_allclose(quaternion_to_matrix(matrix_to_quaternion(rotation)), rotation, atol=1e-12)


def test_look_at_projects_the_target_to_the_centre_and_stays_upright():
    pose = look_at(np.array([3.0, -4.0, 2.0]), np.array([0.5, 0.0, 0.25]), np.array([0.0, 0.0, 1.0]))
    assert pose_fault(pose) is None
    points = torch.tensor([[0.5, 0.0, 0.25], [0.5, 0.0, 0.75]], dtype=torch.float64)
    xy, depth = project(PINHOLE, pose, points)
    assert xy[0].tolist() == pytest.approx([PINHOLE.cx, PINHOLE.cy])
    assert xy[1, 0].item() == pytest.approx(PINHOLE.cx)
    assert xy[1, 1] < PINHOLE.cy
    assert (depth > 0).all()
    straight_down = look_at(np.array([0.0, 0.0, 3.0]), np.zeros(3), np.array([0.0, 0.0, 1.0]))
    assert pose_fault(straight_down) is None


def test_look_at_accepts_lists_and_is_upright_along_z_by_default():
    pose = look_at([3, 0, 0], (0, 0, 0))
    np.testing.assert_allclose(pose, [[0, 0, 1, 3], [1, 0, 0, 0], [0, 1, 0, 0]], atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1, 2, 3], [1, 2, 3]), r"`target` must differ from `position`, got \[1.0, 2.0, 3.0\] for both"),
        (([1, 2], [0, 0, 0]), r"`position` must be three finite numbers up to 1e\+09, got \[1, 2\]"),
        (([1, 2, 3], [0, 0, math.nan]), "`target` must be three finite numbers"),
        (([1, 2, 3], [0, 0, 1e200]), "`target` must be three finite numbers"),
        (([1, 2, 3], "origin"), "`target` must be three finite numbers .* got 'origin'"),
        (([1, 2, 3], [0, 0, 0], [0, 0, 0]), "`up` must be a direction"),
    ],
)
def test_look_at_names_an_invalid_argument(arguments: tuple, words: str):
    with pytest.raises(ConfigError, match=words):
        look_at(*arguments)


def test_pose_fault_describes_each_invalid_pose():
    good = random_pose(1)
    assert pose_fault(good) is None
    assert pose_fault(np.round(good, 3)) is None
    broken = good.copy()
    broken[1, 3] = np.nan
    assert "NaN" in str(pose_fault(broken))
    broken[1, 3] = np.inf
    assert "infinite" in str(pose_fault(broken))
    broken[1, 3] = -1e100
    assert "-1e+100, which is beyond any scene" in str(pose_fault(broken))
    assert "scaled by 2" in str(pose_fault(good * [2, 2, 2, 1]))
    assert "determinant -1" in str(pose_fault(good * [-1, 1, 1, 1]))
    sheared = good.copy()
    sheared[:, 0] += 0.3 * sheared[:, 1]
    assert "not orthonormal" in str(pose_fault(sheared))
    assert "scaled" not in str(pose_fault(np.zeros((3, 4))))


def test_similarity_preserves_projections_and_scales_depth():
    rotation = random_pose(8)[:, :3]
    matrix = similarity(rotation, np.array([1.0, -2.0, 0.5]), 0.31)
    poses = np.stack([random_pose(i) for i in range(4)])
    points = np.random.default_rng(0).normal(size=(20, 3))
    moved = points @ matrix[:3, :3].T + matrix[:3, 3]
    np.testing.assert_allclose(matrix @ [1.0, -2.0, 0.5, 1.0], [0, 0, 0, 1], atol=1e-12)
    for pose, new_pose in zip(poses, apply_similarity(matrix, poses), strict=True):
        assert pose_fault(new_pose) is None
        xy, depth = project(PINHOLE, pose, torch.from_numpy(points))
        new_xy, new_depth = project(PINHOLE, new_pose, torch.from_numpy(moved))
        ahead = depth > 0.1
        torch.testing.assert_close(new_xy[ahead], xy[ahead], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(new_depth, depth * 0.31, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("camera", [PINHOLE, OPENCV, FISHEYE], ids=lambda c: c.model)
def test_turn_clockwise_rotates_the_camera_with_its_image(camera: Camera):
    pose = random_pose(5)
    xy = torch.tensor([[10.0, 7.0], [40.0, 30.0]], dtype=torch.float64)
    points = unproject(camera, pose, xy, torch.tensor([2.0, 3.0], dtype=torch.float64))
    turned, turned_pose = turn_clockwise(camera, pose, 1)
    assert (turned.width, turned.height) == (camera.height, camera.width)
    # Turned clockwise, the left column becomes the top row: x' = height - y, y' = x.
    expected = torch.stack([camera.height - xy[:, 1], xy[:, 0]], dim=1)
    torch.testing.assert_close(project(turned, turned_pose, points)[0], expected, rtol=0, atol=1e-6)
    again, again_pose = turn_clockwise(camera, pose, 4)
    assert again == camera
    np.testing.assert_allclose(again_pose, pose)

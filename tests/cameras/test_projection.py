"""Camera conventions, checked against formulas written out here and never against the module itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raymine import cameras
from raymine.cameras import (
    CameraTable,
    apply_similarity,
    camera_directions,
    distort_fisheye,
    distort_opencv,
    field_of_view,
    from_colmap,
    from_llff,
    from_opencv,
    lens_coverage,
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
from raymine.cameras.lens import fisheye_slope, opencv_slope
from raymine.contracts import Camera

PINHOLE = Camera(64, 48, 70.0, 68.0, 30.0, 25.0)
OPENCV = Camera(640, 480, 500.0, 510.0, 322.0, 236.0, "opencv", (-0.28, 0.09, 0.0012, -0.0017, -0.01))
FISHEYE = Camera(600, 600, 190.0, 191.0, 302.0, 297.0, "fisheye", (0.031, -0.012, 0.004, -0.0004))
# At the origin with x right, y up, looking along -z.
AT_ORIGIN = np.eye(3, 4)


def random_pose(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return look_at(rng.normal(size=3) * 3, rng.normal(size=3), rng.normal(size=3))


def test_every_exported_name_exists():
    for name in cameras.__all__:
        assert hasattr(cameras, name)


def test_project_pinhole_by_hand():
    # 2 to the right, 1 up, 4 ahead: u = 2/4, v = -1/4.
    xy, depth = project(PINHOLE, AT_ORIGIN, torch.tensor([[2.0, 1.0, -4.0]], dtype=torch.float64))
    assert xy[0].tolist() == pytest.approx([70 * 0.5 + 30, -68 * 0.25 + 25])
    assert depth.tolist() == [4.0]


def test_project_opencv_by_hand():
    k1, k2, p1, p2, k3 = OPENCV.distortion
    x, y = 0.3, -0.2
    r2 = x * x + y * y
    radial = 1 + k1 * r2 + k2 * r2**2 + k3 * r2**3
    u = x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x)
    v = y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y
    xy, _ = project(OPENCV, AT_ORIGIN, torch.tensor([[3 * x, -3 * y, -3.0]], dtype=torch.float64))
    assert xy[0].tolist() == pytest.approx([500 * u + 322, 510 * v + 236], abs=1e-9)


def test_project_fisheye_by_hand_also_behind_the_image_plane():
    k1, k2, k3, k4 = FISHEYE.distortion
    for theta in (0.4, 1.2, 1.9):
        distance = theta * (1 + k1 * theta**2 + k2 * theta**4 + k3 * theta**6 + k4 * theta**8)
        # In the direction 30 degrees below the right.
        a = math.radians(30)
        point = [math.sin(theta) * math.cos(a), -math.sin(theta) * math.sin(a), -math.cos(theta)]
        xy, depth = project(FISHEYE, AT_ORIGIN, torch.tensor([point], dtype=torch.float64))
        expected = [190 * distance * math.cos(a) + 302, 191 * distance * math.sin(a) + 297]
        assert xy[0].tolist() == pytest.approx(expected, abs=1e-9)
        assert depth.item() == pytest.approx(math.cos(theta))


def test_points_on_the_axis_and_in_the_camera_centre_are_finite():
    points = torch.tensor([[0.0, 0.0, -1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    for camera in (PINHOLE, OPENCV, FISHEYE):
        xy, _ = project(camera, AT_ORIGIN, points)
        assert xy.isfinite().all()
        assert xy[0].tolist() == pytest.approx([camera.cx, camera.cy])
        axis = camera_directions(camera, torch.tensor([camera.cx]), torch.tensor([camera.cy]))
        assert axis[0].tolist() == pytest.approx([0, 0, -1], abs=1e-6)


@pytest.mark.parametrize("camera", [PINHOLE, OPENCV, FISHEYE], ids=lambda c: c.model)
@pytest.mark.parametrize(("dtype", "pixels"), [(torch.float64, 1e-6), (torch.float32, 2e-3)])
def test_unproject_inverts_project_over_the_whole_picture(camera: Camera, dtype: torch.dtype, pixels: float):
    x = torch.linspace(0, camera.width, 41, dtype=dtype)
    y = torch.linspace(0, camera.height, 41, dtype=dtype)
    yy, xx = torch.meshgrid(y, x, indexing="ij")
    xy = torch.stack([xx.reshape(-1), yy.reshape(-1)], dim=1)
    pose = random_pose(3)
    points = unproject(camera, pose, xy, torch.full((len(xy),), 2.5, dtype=dtype))
    again, _ = project(camera, pose, points.double())
    assert (again - xy).abs().max() < pixels
    distances = (points.double() - torch.from_numpy(pose[:, 3])).norm(dim=1)
    assert (distances - 2.5).abs().max() < 1e-5


@settings(max_examples=25, deadline=None)
@given(st.floats(-0.3, 0.3), st.floats(-0.05, 0.1), st.floats(-0.005, 0.005), st.floats(-0.005, 0.005))
def test_undistortion_converges_below_a_millionth_in_float32(k1: float, k2: float, p1: float, p2: float):
    camera = Camera(640, 480, 520.0, 520.0, 320.0, 240.0, "opencv", (k1, k2, p1, p2, 0.0))
    if lens_coverage(camera) < 1:
        return
    table = CameraTable.build([camera])
    assert table.opencv_steps <= 8
    x, y = torch.rand(200) * 640, torch.rand(200) * 480
    fast = table.directions(torch.zeros(200, dtype=torch.int64), x, y)
    exact = camera_directions(camera, x.double(), y.double())
    assert (fast.double() - exact).abs().max() < 1e-6


def test_mixed_table_equals_each_camera_alone():
    many = [PINHOLE, OPENCV, FISHEYE, PINHOLE]
    table = CameraTable.build(many, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 4, (500,), generator=generator)
    x = torch.rand(500, generator=generator, dtype=torch.float64) * 60
    y = torch.rand(500, generator=generator, dtype=torch.float64) * 40
    mixed = table.directions(index, x, y)
    for i, camera in enumerate(many):
        here = index == i
        torch.testing.assert_close(mixed[here], camera_directions(camera, x[here], y[here]), rtol=0, atol=1e-12)
    assert (mixed.norm(dim=1) - 1).abs().max() < 1e-12


def test_fisheye_without_coefficients_is_equidistant():
    camera = Camera(400, 400, 100.0, 100.0, 200.0, 200.0, "fisheye", (0.0,) * 4)
    direction = camera_directions(camera, torch.tensor([300.0]), torch.tensor([200.0]))
    assert direction[0].tolist() == pytest.approx([math.sin(1.0), 0.0, -math.cos(1.0)], abs=1e-6)


def test_a_lens_that_folds_is_noticed_and_stays_finite():
    camera = Camera(640, 480, 200.0, 200.0, 320.0, 240.0, "opencv", (-0.5, 0.0, 0.0, 0.0, 0.0))
    assert 0.05 < lens_coverage(camera) < 0.2
    directions = camera_directions(camera, torch.tensor([0.0, 320.0]), torch.tensor([0.0, 240.0]))
    assert directions.isfinite().all()
    assert lens_coverage(OPENCV) == lens_coverage(FISHEYE) == lens_coverage(PINHOLE) == 1.0


def test_empty_batches_and_tables():
    empty = torch.empty(0)
    for camera in (PINHOLE, OPENCV, FISHEYE):
        assert camera_directions(camera, empty, empty).shape == (0, 3)
        assert project(camera, AT_ORIGIN, torch.empty(0, 3))[0].shape == (0, 2)
    assert CameraTable.build([]).directions(empty.long(), empty, empty).shape == (0, 3)


def test_colmap_pose_by_hand():
    # World-to-camera without rotation, camera at (1, 2, 3): t = -centre. OpenCV looks along +z with y down.
    pose = from_colmap(np.array([1.0, 0, 0, 0]), np.array([-1.0, -2.0, -3.0]))
    expected = np.array([[1, 0, 0, 1], [0, -1, 0, 2], [0, 0, -1, 3]], dtype=float)
    np.testing.assert_allclose(pose, expected)
    # A quarter turn about z: (w, x, y, z) = (cos 45, 0, 0, sin 45) takes x to y.
    half = math.sqrt(0.5)
    np.testing.assert_allclose(quaternion_to_matrix(np.array([half, 0, 0, half])) @ [1, 0, 0], [0, 1, 0], atol=1e-12)


def test_llff_pose_by_hand():
    # Columns [down, right, back]: a camera whose right is +x, up +y, back +z.
    llff = np.array([[0, 1, 0, 5], [-1, 0, 0, 6], [0, 0, 1, 7]], dtype=float)
    np.testing.assert_allclose(from_llff(llff), np.array([[1, 0, 0, 5], [0, 1, 0, 6], [0, 0, 1, 7]], dtype=float))


@pytest.mark.parametrize("seed", range(5))
def test_conversions_round_trip(seed: int):
    pose = random_pose(seed)
    np.testing.assert_allclose(from_colmap(*to_colmap(pose)), pose, atol=1e-12)
    np.testing.assert_allclose(from_llff(to_llff(pose)), pose, atol=1e-12)
    np.testing.assert_allclose(from_opencv(from_opencv(pose)), pose, atol=1e-12)


@pytest.mark.parametrize("axis", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.6, 0.8, 0)])
def test_quaternion_of_a_half_turn(axis: tuple[float, float, float]):
    rotation = 2 * np.outer(axis, axis) - np.eye(3)
    np.testing.assert_allclose(quaternion_to_matrix(matrix_to_quaternion(rotation)), rotation, atol=1e-12)


def test_look_at_sees_the_target_in_the_centre_upright():
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


def test_pose_faults_are_named():
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


def test_similarity_keeps_every_projection():
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
def test_turning_a_picture_turns_its_camera(camera: Camera):
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


def test_field_of_view():
    assert field_of_view(Camera(200, 100, 100.0, 50.0, 100.0, 50.0)) == pytest.approx((90.0, 90.0))
    fisheye = Camera(314, 157, 100.0, 100.0, 157.0, 78.5, "fisheye", (0.0,) * 4)
    assert field_of_view(fisheye)[0] == pytest.approx(180, abs=0.1)


def test_the_fold_is_where_the_polynomial_turns():
    # r (1 - r^2 / 2) grows up to r = sqrt(2/3), where it is 0.5443; nothing farther out can be undone.
    edge = math.sqrt(2 / 3) * (1 - 1 / 3)
    size = 400
    inside = Camera(
        size, size, size / (2 * edge * 0.69), size / (2 * edge * 0.69), 200.0, 200.0, "opencv", (-0.5, 0, 0, 0, 0)
    )
    assert lens_coverage(inside) == 1.0
    outside = Camera(size, size, 100.0, 100.0, 200.0, 200.0, "opencv", (-0.5, 0.0, 0.0, 0.0, 0.0))
    assert lens_coverage(outside) == pytest.approx(math.pi * (edge * 100) ** 2 / size**2, abs=0.03)


def test_slopes_are_the_derivatives_of_the_lens():
    """Newton's method converges with a wrong derivative too, only slowly, so the derivative is checked by itself."""
    k = [torch.tensor(v, dtype=torch.float64) for v in OPENCV.distortion]
    x, y = torch.tensor([0.3, -0.4], dtype=torch.float64), torch.tensor([0.2, 0.5], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(
        lambda p: torch.stack(distort_opencv(p[0], p[1], k)), torch.stack([x, y])
    )
    for i in range(2):
        expected = torch.linalg.det(jacobian[:, i, :, i])
        assert opencv_slope(x, y, k)[i].item() == pytest.approx(expected.item(), rel=1e-12)
    q = [torch.tensor(v, dtype=torch.float64) for v in FISHEYE.distortion]
    theta = torch.tensor([0.1, 0.9, 1.8], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(distort_fisheye(theta, q).sum(), theta)
    torch.testing.assert_close(fisheye_slope(theta.detach(), q), slope, rtol=1e-12, atol=0)


def test_newton_converges_quadratically():
    assert CameraTable.build([OPENCV]).opencv_steps <= 4
    assert CameraTable.build([FISHEYE]).fisheye_steps <= 4

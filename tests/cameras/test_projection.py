"""Camera projection, checked against formulas written out here instead of the module's own functions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from raymine import cameras
from raymine.cameras import CameraTable, camera_directions, field_of_view, lens_coverage, project, unproject
from raymine.contracts import Camera
from support.cameras import FISHEYE, OPENCV, PINHOLE, random_pose

# At the origin with x right, y up, looking along -z.
AT_ORIGIN = np.eye(3, 4)


def test_every_exported_name_exists():
    for name in cameras.__all__:
        assert hasattr(cameras, name)


def test_project_pinhole_matches_hand_computation():
    # 2 to the right, 1 up, 4 ahead: u = 2/4, v = -1/4.
    xy, depth = project(PINHOLE, AT_ORIGIN, torch.tensor([[2.0, 1.0, -4.0]], dtype=torch.float64))
    assert xy[0].tolist() == pytest.approx([70 * 0.5 + 30, -68 * 0.25 + 25])
    assert depth.tolist() == [4.0]


def test_project_opencv_matches_formula():
    k1, k2, p1, p2, k3 = OPENCV.distortion
    x, y = 0.3, -0.2
    r2 = x * x + y * y
    radial = 1 + k1 * r2 + k2 * r2**2 + k3 * r2**3
    u = x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x)
    v = y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y
    xy, _ = project(OPENCV, AT_ORIGIN, torch.tensor([[3 * x, -3 * y, -3.0]], dtype=torch.float64))
    assert xy[0].tolist() == pytest.approx([500 * u + 322, 510 * v + 236], abs=1e-9)


def test_project_fisheye_matches_formula_also_behind_the_image_plane():
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


def test_project_is_finite_on_the_axis_and_at_the_camera_centre():
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


def test_directions_of_a_mixed_table_equal_each_camera_alone():
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


def test_non_invertible_lens_has_low_coverage_and_finite_directions():
    camera = Camera(640, 480, 200.0, 200.0, 320.0, 240.0, "opencv", (-0.5, 0.0, 0.0, 0.0, 0.0))
    assert 0.05 < lens_coverage(camera) < 0.2
    directions = camera_directions(camera, torch.tensor([0.0, 320.0]), torch.tensor([0.0, 240.0]))
    assert directions.isfinite().all()
    assert lens_coverage(OPENCV) == lens_coverage(FISHEYE) == lens_coverage(PINHOLE) == 1.0


def test_empty_batches_and_tables_give_empty_results():
    empty = torch.empty(0)
    for camera in (PINHOLE, OPENCV, FISHEYE):
        assert camera_directions(camera, empty, empty).shape == (0, 3)
        assert project(camera, AT_ORIGIN, torch.empty(0, 3))[0].shape == (0, 2)
    assert CameraTable.build([]).directions(empty.long(), empty, empty).shape == (0, 3)


def test_field_of_view_of_pinhole_and_fisheye_in_degrees():
    assert field_of_view(Camera(200, 100, 100.0, 50.0, 100.0, 50.0)) == pytest.approx((90.0, 90.0))
    fisheye = Camera(314, 157, 100.0, 100.0, 157.0, 78.5, "fisheye", (0.0,) * 4)
    assert field_of_view(fisheye)[0] == pytest.approx(180, abs=0.1)

"""Lens distortion: accuracy of its inverse, where it is not invertible, derivatives, and number of Newton steps."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from raymine.cameras import CameraTable, camera_directions, distort_fisheye, distort_opencv, lens_coverage
from raymine.cameras.lens import fisheye_slope, opencv_slope
from raymine.contracts import Camera
from support.cameras import FISHEYE, OPENCV


@settings(max_examples=25, deadline=None)
@given(st.floats(-0.3, 0.3), st.floats(-0.05, 0.1), st.floats(-0.005, 0.005), st.floats(-0.005, 0.005))
def test_undistortion_converges_below_a_millionth_in_float32(k1: float, k2: float, p1: float, p2: float):
    camera = Camera(640, 480, 520.0, 520.0, 320.0, 240.0, "opencv", (k1, k2, p1, p2, 0.0))
    assume(lens_coverage(camera) == 1)
    table = CameraTable.build([camera])
    assert table.opencv_steps <= 8
    x, y = torch.rand(200) * 640, torch.rand(200) * 480
    fast = table.directions(torch.zeros(200, dtype=torch.int64), x, y)
    exact = camera_directions(camera, x.double(), y.double())
    assert (fast.double() - exact).abs().max() < 1e-6


def test_lens_coverage_ends_where_distortion_stops_increasing():
    # r (1 - r^2 / 2) grows up to r = sqrt(2/3), where it is 0.5443; larger distorted radii have no inverse.
    edge = math.sqrt(2 / 3) * (1 - 1 / 3)
    size = 400
    inside = Camera(
        size, size, size / (2 * edge * 0.69), size / (2 * edge * 0.69), 200.0, 200.0, "opencv", (-0.5, 0, 0, 0, 0)
    )
    assert lens_coverage(inside) == 1.0
    outside = Camera(size, size, 100.0, 100.0, 200.0, 200.0, "opencv", (-0.5, 0.0, 0.0, 0.0, 0.0))
    assert lens_coverage(outside) == pytest.approx(math.pi * (edge * 100) ** 2 / size**2, abs=0.03)


def test_slopes_equal_autograd_derivatives_of_distortion():
    """Newton's method also converges with a wrong derivative, only more slowly, so it would hide such an error."""
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


def test_newton_inverse_needs_at_most_four_steps():
    assert CameraTable.build([OPENCV]).opencv_steps <= 4
    assert CameraTable.build([FISHEYE]).fisheye_steps <= 4

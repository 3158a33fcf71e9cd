"""Lens models: values by hand, the models of `cameras`, round trips, gradients, and edge cases."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from raymine.cameras import distort_opencv
from raymine.errors import ConfigError
from raymine.toolkit.lenses import STEEPEST, distort, distort_fisheye, undistort, undistort_fisheye

ALL = torch.tensor([0.11, -0.03, 0.004, -0.003, 0.012, 0.05, 0.01, -0.004, 0.003, -0.002, 0.001, 0.002])


def grid(reach: float, dtype: torch.dtype = torch.float32) -> Tensor:
    line = torch.linspace(-reach, reach, 9, dtype=dtype)
    return torch.stack(torch.meshgrid(line, line, indexing="ij"), -1)


def test_distortion_matches_hand_computed_values() -> None:
    """x = 1, y = 2: r2 = 5, r2^2 = 25, r2^3 = 125."""
    k1, k2, p1, p2, k3, k4, k5, k6, s1, s2, s3, s4 = (float(k) for k in ALL)
    radial = (1 + 5 * k1 + 25 * k2 + 125 * k3) / (1 + 5 * k4 + 25 * k5 + 125 * k6)
    expected = [
        radial + 4 * p1 + 7 * p2 + 5 * s1 + 25 * s2,
        2 * radial + 4 * p2 + 13 * p1 + 5 * s3 + 25 * s4,
    ]
    assert distort(torch.tensor([1.0, 2.0]), ALL).tolist() == pytest.approx(expected, rel=1e-5)
    # A fisheye sees a point at 45 degrees at the distance pi / 4 from the centre, stretched by its polynomial.
    theta = math.pi / 4
    radius = theta * (1 + 0.1 * theta**2 + 0.02 * theta**4 - 0.03 * theta**6 + 0.01 * theta**8)
    got = distort_fisheye(torch.tensor([0.6, 0.8]), torch.tensor([0.1, 0.02, -0.03, 0.01]))
    assert got.tolist() == pytest.approx([0.6 * radius, 0.8 * radius], rel=1e-5)


def test_five_coefficients_match_the_opencv_model_of_cameras() -> None:
    points = grid(0.8)
    x, y = distort_opencv(points[..., 0], points[..., 1], ALL[:5].unbind())
    torch.testing.assert_close(distort(points, ALL[:5]), torch.stack((x, y), -1))


@pytest.mark.parametrize("n", [0, 1, 2, 4, 5, 8, 12])
def test_undistort_inverts_distort(n: int) -> None:
    points = grid(0.7, torch.float64)
    k = ALL[:n].double()
    torch.testing.assert_close(undistort(distort(points, k), k), points, atol=1e-9, rtol=0)
    per_point = k.expand(*points.shape[:-1], n)
    torch.testing.assert_close(distort(points, per_point), distort(points, k))


@settings(max_examples=60, deadline=None)
@given(st.floats(-1.5, 1.5), st.floats(-1.5, 1.5), st.lists(st.floats(-0.02, 0.02), min_size=4, max_size=4))
def test_undistort_fisheye_inverts_distort_fisheye(x: float, y: float, k: list[float]) -> None:
    point, coefficients = torch.tensor([x, y], dtype=torch.float64), torch.tensor(k, dtype=torch.float64)
    back = undistort_fisheye(distort_fisheye(point, coefficients), coefficients)
    torch.testing.assert_close(back, point, atol=1e-7, rtol=1e-7)


def test_distortion_and_its_inverse_pass_gradcheck() -> None:
    points = grid(0.6, torch.float64).reshape(-1, 2)[::7].requires_grad_()
    k = ALL.double().requires_grad_()
    assert torch.autograd.gradcheck(distort, (points, k))
    assert torch.autograd.gradcheck(lambda p, c: undistort(p, c, 30), (points, k))
    fisheye = torch.tensor([0.05, -0.01, 0.004, 0.001], dtype=torch.float64, requires_grad=True)
    away = (points.detach() + 0.031).requires_grad_()
    assert torch.autograd.gradcheck(distort_fisheye, (away, fisheye))
    assert torch.autograd.gradcheck(lambda p, c: undistort_fisheye(p, c, 30), (away, fisheye))
    for function in (distort_fisheye, undistort_fisheye):
        centre = torch.zeros(2, requires_grad=True)
        function(centre, fisheye.detach().float()).sum().backward()
        assert centre.grad is not None
        assert centre.grad.tolist() == pytest.approx([1.0, 1.0])


def test_lenses_handle_empty_nan_far_and_non_invertible_points() -> None:
    assert undistort(torch.zeros(0, 2), ALL).shape == (0, 2)
    nan = torch.tensor([[math.nan, 0.1], [0.2, 0.1]])
    for function, k in ((distort, ALL), (undistort, ALL), (distort_fisheye, ALL[:4]), (undistort_fisheye, ALL[:4])):
        got = function(nan, k)
        assert got[0].isnan().any()
        assert got[1].isfinite().all()
    # Beyond 90 degrees an undistorted fisheye point keeps its direction and lies far out.
    far = undistort_fisheye(torch.tensor([[3.0, 4.0]]), torch.zeros(4))
    assert float(far.norm()) == pytest.approx(math.tan(STEEPEST), rel=1e-2)
    assert (far / far.norm()).tolist() == [pytest.approx([0.6, 0.8])]
    # With k1 = -1/3 the radial derivative is 0 at r = 1, so the point stays where it is.
    fold = undistort(torch.tensor([[1.0, 0.0]]), torch.tensor([-1 / 3]))
    assert fold.tolist() == [[1.0, 0.0]]
    for points, k in ((torch.zeros(3), ALL), (torch.zeros(2), ALL[:3]), (torch.zeros(2).long(), ALL)):
        with pytest.raises(ConfigError):
            distort(points, k)
    with pytest.raises(ConfigError, match="fisheye"):
        distort_fisheye(torch.zeros(2), ALL)

"""Lens distortion and its inverse, as tensor functions on the image plane at distance 1 (x right, y down).

opencv, with r2 = x^2 + y^2 and coefficients k1 k2 p1 p2 k3:

    x' = x (1 + k1 r2 + k2 r2^2 + k3 r2^3) + 2 p1 x y + p2 (r2 + 2 x^2)        and likewise y' with p1, p2 exchanged

fisheye (equidistant), with theta the angle to the optical axis and coefficients k1 k2 k3 k4:

    theta' = theta (1 + k1 theta^2 + k2 theta^4 + k3 theta^6 + k4 theta^8)

The inverses have no closed form. Newton's method with the exact derivative converges quadratically. If the distortion
curve is convex or concave, it approaches the root from one side, so a small fixed number of steps is enough;
`projection` measures that number for each camera. Everything is arithmetic on tensors of one shape: it runs on any
device and dtype and does not wait for the device. Coefficients are tensors that broadcast against the points.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_LONGEST_STEP = 0.5
_SMALLEST_SLOPE = 1e-3


def distort_opencv(x: Tensor, y: Tensor, coefficients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Undistorted [n] -> distorted [n] image-plane points; `coefficients` are k1, k2, p1, p2, k3. Differentiable."""
    k1, k2, p1, p2, k3 = coefficients
    r2 = x * x + y * y
    radial = 1 + r2 * (k1 + r2 * (k2 + r2 * k3))
    tangent = 2 * (p2 * x + p1 * y)
    return x * (radial + tangent) + p2 * r2, y * (radial + tangent) + p1 * r2


def undistort_opencv(xd: Tensor, yd: Tensor, coefficients: Sequence[Tensor], steps: int) -> tuple[Tensor, Tensor]:
    """Inverse of `distort_opencv` by `steps` Newton steps in two dimensions.

    Where the distortion polynomial turns back (its fold), points have no inverse. The bounded steps then give a finite
    but meaningless result; `raymine.cameras.lens_coverage` tells how many such points a picture has.
    """
    x, y = xd, yd
    for _ in range(steps):
        u, v, jxx, jyy, jxy = _opencv_with_jacobian(x, y, coefficients)
        ex, ey = u - xd, v - yd
        determinant = (jxx * jyy - jxy * jxy).clamp(min=_SMALLEST_SLOPE)
        x = x - ((jyy * ex - jxy * ey) / determinant).clamp(-_LONGEST_STEP, _LONGEST_STEP)
        y = y - ((jxx * ey - jxy * ex) / determinant).clamp(-_LONGEST_STEP, _LONGEST_STEP)
    return x, y


def opencv_slope(x: Tensor, y: Tensor, coefficients: Sequence[Tensor]) -> Tensor:
    """Determinant of the derivative of `distort_opencv` [n]; where it is not positive, the model has folded over."""
    _, _, jxx, jyy, jxy = _opencv_with_jacobian(x, y, coefficients)
    return jxx * jyy - jxy * jxy


def _opencv_with_jacobian(x: Tensor, y: Tensor, coefficients: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Distorted x, y and the derivatives dx'/dx, dy'/dy, dx'/dy = dy'/dx."""
    k1, k2, p1, p2, k3 = coefficients
    xx, yy, xy = x * x, y * y, x * y
    r2 = xx + yy
    radial = 1 + r2 * (k1 + r2 * (k2 + r2 * k3))
    slope = 2 * (k1 + r2 * (2 * k2 + 3 * r2 * k3))
    common = radial + 2 * (p2 * x + p1 * y)
    jxx = common + slope * xx + 4 * p2 * x
    jyy = common + slope * yy + 4 * p1 * y
    jxy = slope * xy + 2 * (p1 * x + p2 * y)
    return x * common + p2 * r2, y * common + p1 * r2, jxx, jyy, jxy


def distort_fisheye(theta: Tensor, coefficients: Sequence[Tensor]) -> Tensor:
    """Angle to the optical axis [n] in radians -> distance from the centre on the image plane [n]. Differentiable."""
    k1, k2, k3, k4 = coefficients
    t2 = theta * theta
    return theta * (1 + t2 * (k1 + t2 * (k2 + t2 * (k3 + t2 * k4))))


def undistort_fisheye(distance: Tensor, coefficients: Sequence[Tensor], steps: int) -> Tensor:
    """Inverse of `distort_fisheye` by `steps` Newton steps; the angle is kept within 0..pi."""
    theta = distance.clamp(0.0, torch.pi)
    for _ in range(steps):
        slope = fisheye_slope(theta, coefficients).clamp(min=_SMALLEST_SLOPE)
        step = (distort_fisheye(theta, coefficients) - distance) / slope
        theta = (theta - step.clamp(-_LONGEST_STEP, _LONGEST_STEP)).clamp(0.0, torch.pi)
    return theta


def fisheye_slope(theta: Tensor, coefficients: Sequence[Tensor]) -> Tensor:
    """Derivative of `distort_fisheye` [n]; where it is not positive, the model has folded over."""
    k1, k2, k3, k4 = coefficients
    t2 = theta * theta
    return 1 + t2 * (3 * k1 + t2 * (5 * k2 + t2 * (7 * k3 + t2 * 9 * k4)))

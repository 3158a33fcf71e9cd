"""Directions of pixels in the camera frame in Triton. `raymine.cameras.lens` defines how distortion is removed."""

from __future__ import annotations

import triton
import triton.language as tl

_PI: tl.constexpr = tl.constexpr(3.141592653589793)


@triton.jit
def _bounded(step):
    """A Newton step, clamped to -0.5..0.5."""
    return tl.minimum(tl.maximum(step, -0.5), 0.5)


@triton.jit
def _undistort_opencv(xd, yd, k1, k2, p1, p2, k3, steps):
    """Undistorted x, y of distorted xd, yd, by `steps` steps of Newton's method in two dimensions."""
    x, y = xd, yd
    for _ in range(0, steps):
        xx, yy = x * x, y * y
        r2 = xx + yy
        slope = 2 * (k1 + r2 * (2 * k2 + 3 * r2 * k3))
        common = 1 + r2 * (k1 + r2 * (k2 + r2 * k3)) + 2 * (p2 * x + p1 * y)
        jxx = common + slope * xx + 4 * p2 * x
        jyy = common + slope * yy + 4 * p1 * y
        jxy = slope * x * y + 2 * (p1 * x + p2 * y)
        ex, ey = x * common + p2 * r2 - xd, y * common + p1 * r2 - yd
        determinant = tl.maximum(jxx * jyy - jxy * jxy, 1e-3)
        x -= _bounded((jyy * ex - jxy * ey) / determinant)
        y -= _bounded((jxx * ey - jxy * ex) / determinant)
    return x, y


@triton.jit
def _undistort_fisheye(distance, k1, k2, k3, k4, steps):
    """The angle to the optical axis, in 0..pi, of a distorted radius, by `steps` steps of Newton's method."""
    theta = tl.minimum(distance, _PI)
    for _ in range(0, steps):
        t2 = theta * theta
        value = theta * (1 + t2 * (k1 + t2 * (k2 + t2 * (k3 + t2 * k4))))
        slope = 1 + t2 * (3 * k1 + t2 * (5 * k2 + t2 * (7 * k3 + t2 * 9 * k4)))
        theta -= _bounded((value - distance) / tl.maximum(slope, 1e-3))
        theta = tl.minimum(tl.maximum(theta, 0.0), _PI)
    return theta


@triton.jit
def through_lens(
    column, images, x, y, live, opencv_steps, fisheye_steps, OPENCV: tl.constexpr, FISHEYE: tl.constexpr
):  # fmt: skip
    """Unit directions (right, up, backward) through pixel coordinates x, y.

    column: pointers to 1 / fx of the camera of each ray in a table [values, images]. The next rows are 1 / fy, cx, cy;
    if OPENCV, k1 k2 p1 p2 k3; if FISHEYE, whether the camera is a fisheye (1 or 0) and its k1 k2 k3 k4.
    """
    u = (x - tl.load(column + 2 * images, mask=live, other=0.0)) * tl.load(column, mask=live, other=0.0)
    v = (y - tl.load(column + 3 * images, mask=live, other=0.0)) * tl.load(column + images, mask=live, other=0.0)
    at = column + 4 * images
    if OPENCV:
        u, v = _undistort_opencv(
            u, v,
            tl.load(at, mask=live, other=0.0), tl.load(at + images, mask=live, other=0.0),
            tl.load(at + 2 * images, mask=live, other=0.0), tl.load(at + 3 * images, mask=live, other=0.0),
            tl.load(at + 4 * images, mask=live, other=0.0), opencv_steps,
        )  # fmt: skip
        at += 5 * images
    shrink = tl.rsqrt(u * u + v * v + 1.0)
    right, up, back = u * shrink, -v * shrink, -shrink
    if FISHEYE:
        is_fisheye = tl.load(at, mask=live, other=0.0) > 0
        # For cameras that are not fisheyes the result is unused, and distance 0 keeps it finite.
        distance = tl.where(is_fisheye, tl.sqrt(u * u + v * v), 0.0)
        theta = _undistort_fisheye(
            distance,
            tl.load(at + images, mask=live, other=0.0), tl.load(at + 2 * images, mask=live, other=0.0),
            tl.load(at + 3 * images, mask=live, other=0.0), tl.load(at + 4 * images, mask=live, other=0.0),
            fisheye_steps,
        )  # fmt: skip
        sine = tl.where(distance > 1e-12, tl.sin(theta) / tl.maximum(distance, 1e-12), 1.0)
        right, up = tl.where(is_fisheye, sine * u, right), tl.where(is_fisheye, -sine * v, up)
        back = tl.where(is_fisheye, -tl.cos(theta), back)
    return right, up, back

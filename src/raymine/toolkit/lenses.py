"""Lens distortion of points on the image plane at distance 1, and its inverse.

Perspective lenses have the coefficients k1 k2 p1 p2 k3 k4 k5 k6 s1 s2 s3 s4, in the order of OpenCV. With
r2 = x^2 + y^2:

    q  = (1 + k1 r2 + k2 r2^2 + k3 r2^3) / (1 + k4 r2 + k5 r2^2 + k6 r2^3)
    x' = x q + 2 p1 x y + p2 (r2 + 2 x^2) + s1 r2 + s2 r2^2
    y' = y q + 2 p2 x y + p1 (r2 + 2 y^2) + s3 r2 + s4 r2^2

Fisheye lenses (`raymine.cameras.lens`) map a point at the angle theta = atan(r) to the radius
theta (1 + k1 theta^2 + k2 theta^4 + k3 theta^6 + k4 theta^8).

Newton's method computes the inverses without a graph. One more step, in which only the residual has a graph, then gives
the exact derivative of the inverse: with p' = f(p, k), dp = J^-1 (dp' - df/dk dk).
"""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.cameras import distort_fisheye as _radius_of
from raymine.cameras import undistort_fisheye as _angle_of
from raymine.errors import ConfigError
from raymine.kernels import checks

LENGTHS = (0, 1, 2, 4, 5, 8, 12)
"""Allowed numbers of coefficients of a perspective lens; missing coefficients are 0."""

MOST_STEPS = 1000
"""Most Newton steps of an inverse. It converges within about ten, or not at all."""

STEEPEST = torch.pi / 2 - 1e-4
"""The largest angle that `undistort_fisheye` returns, in radians. A ray at a right angle does not meet the image
plane."""


def distort(points: Tensor, coefficients: Tensor) -> Tensor:
    """Points [..., 2] on the image plane -> [..., 2], distorted by a perspective lens.

    coefficients: [..., 0 | 1 | 2 | 4 | 5 | 8 | 12]. The result is infinite where the denominator of q is 0.
    Differentiable in both arguments.
    """
    coefficients = _twelve(points, coefficients)
    x, y = points.unbind(-1)
    return torch.stack(_perspective(x, y, coefficients)[:2], -1)


def undistort(points: Tensor, coefficients: Tensor, iterations: int = 10, tolerance: float = 1e-6) -> Tensor:
    """Inverse of `distort`, [..., 2] -> [..., 2], by `iterations` Newton steps that start at the distorted point.

    A step is skipped where the determinant of the Jacobian is at most `tolerance` in absolute value. Beyond the radius
    at which a lens folds over, there is no inverse and the result is meaningless; `distort` of it differs from the
    input. NaN stays NaN. Differentiable in both arguments; the derivative is exact where the iteration has converged.
    """
    coefficients = _twelve(points, coefficients)
    checks.whole(high=MOST_STEPS, iterations=iterations)
    checks.numbers(tolerance=tolerance)
    with torch.no_grad():
        x, y = points.unbind(-1)
        for _ in range(iterations):
            step_x, step_y = _newton(x, y, points, coefficients, tolerance)
            x, y = x - step_x, y - step_y
    if not torch.is_grad_enabled() or not (points.requires_grad or coefficients.requires_grad):
        return torch.stack((x, y), -1)
    step_x, step_y = _newton(x, y, points, coefficients, tolerance)
    return torch.stack((x - step_x, y - step_y), -1)


def distort_fisheye(points: Tensor, coefficients: Tensor) -> Tensor:
    """Points [..., 2] on the image plane -> [..., 2], distorted by a fisheye lens. Differentiable in both arguments.

    coefficients: [..., 4].
    """
    k = _four(points, coefficients)
    r2 = points.square().sum(-1)
    r = r2.clamp_min(_tiny(r2)).sqrt()
    return points * (_radius_of(torch.atan(r), k) / r)[..., None]


def undistort_fisheye(points: Tensor, coefficients: Tensor, iterations: int = 10) -> Tensor:
    """Inverse of `distort_fisheye`, [..., 2] -> [..., 2], by `iterations` Newton steps for the angle.

    coefficients: [..., 4]. The image plane only contains angles below pi/2. Larger angles are clamped to `STEEPEST`, so
    that the result keeps its direction and stays finite. NaN stays NaN. Differentiable in both arguments.
    """
    k = _four(points, coefficients)
    checks.whole(high=MOST_STEPS, iterations=iterations)
    r2 = points.square().sum(-1)
    r = r2.clamp_min(_tiny(r2)).sqrt()
    with torch.no_grad():
        theta = _angle_of(r, k, iterations)
        theta2 = theta * theta
        slope = 1 + theta2 * (3 * k[0] + theta2 * (5 * k[1] + theta2 * (7 * k[2] + theta2 * 9 * k[3])))
        slope = torch.where(slope.abs() > 1e-6, slope, torch.ones_like(slope))
    theta = (theta - (_radius_of(theta, k) - r) / slope).clamp_max(STEEPEST)
    return points * (torch.tan(theta) / r)[..., None]


def _perspective(x: Tensor, y: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """x', y' and the derivatives dx'/dx, dx'/dy, dy'/dx, dy'/dy."""
    k1, k2, p1, p2, k3, k4, k5, k6, s1, s2, s3, s4 = k.unbind(-1)
    r2 = x * x + y * y
    above, below = 1 + r2 * (k1 + r2 * (k2 + r2 * k3)), 1 + r2 * (k4 + r2 * (k5 + r2 * k6))
    above_slope, below_slope = k1 + r2 * (2 * k2 + r2 * 3 * k3), k4 + r2 * (2 * k5 + r2 * 3 * k6)
    radial = above / below
    slope = 2 * (above_slope - radial * below_slope) / below
    prism_x, prism_y = s1 + s2 * r2, s3 + s4 * r2
    prism_x_slope, prism_y_slope = 2 * (s1 + 2 * s2 * r2), 2 * (s3 + 2 * s4 * r2)
    cross = slope * x * y + 2 * (p1 * x + p2 * y)
    return (
        x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x) + prism_x * r2,
        y * radial + 2 * p2 * x * y + p1 * (r2 + 2 * y * y) + prism_y * r2,
        radial + slope * x * x + 2 * p1 * y + 6 * p2 * x + prism_x_slope * x,
        cross + prism_x_slope * y,
        cross + prism_y_slope * x,
        radial + slope * y * y + 2 * p2 * x + 6 * p1 * y + prism_y_slope * y,
    )


def _newton(x: Tensor, y: Tensor, points: Tensor, k: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """One Newton step: what to subtract from x and y to get `points` after distortion. The Jacobian has no graph."""
    u, v, xx, xy, yx, yy = _perspective(x, y, k)
    xx, xy, yx, yy = (part.detach() for part in (xx, xy, yx, yy))
    off_x, off_y = u - points[..., 0], v - points[..., 1]
    determinant = xx * yy - xy * yx
    regular = determinant.abs() > tolerance
    by = torch.where(regular, determinant, torch.ones_like(determinant))
    still = torch.zeros_like(by)
    # For NaN, `regular` is False and the step is 0, so a point that is NaN stays NaN.
    return (
        torch.where(regular, (off_x * yy - off_y * xy) / by, still),
        torch.where(regular, (off_y * xx - off_x * yx) / by, still),
    )


def _twelve(points: Tensor, coefficients: Tensor) -> Tensor:
    """Coefficients [..., 12], padded with zeros."""
    given = coefficients.shape[-1] if coefficients.ndim else -1
    _check_points(points, coefficients)
    if given not in LENGTHS:
        raise ConfigError(
            f"a perspective lens has {', '.join(map(str, LENGTHS))} coefficients in the last dimension, got shape "
            f"{list(coefficients.shape)}. Fill up with zeros."
        )
    return torch.nn.functional.pad(coefficients, (0, 12 - given))


def _four(points: Tensor, coefficients: Tensor) -> tuple[Tensor, ...]:
    _check_points(points, coefficients)
    if not coefficients.ndim or coefficients.shape[-1] != 4:
        raise ConfigError(
            f"a fisheye lens has 4 coefficients in the last dimension, got shape {list(coefficients.shape)}."
        )
    return coefficients.unbind(-1)


def _check_points(points: Tensor, coefficients: Tensor) -> None:
    if not points.ndim or points.shape[-1] != 2 or not points.is_floating_point():
        raise ConfigError(
            f"`points` must be floating point of shape [..., 2], got {points.dtype} of shape {list(points.shape)}."
        )
    checks.reals(points=points, coefficients=coefficients)
    try:
        torch.broadcast_shapes(points.shape[:-1], coefficients.shape[:-1])
    except RuntimeError as error:
        raise ConfigError(
            f"`coefficients` must be those of one lens, or of one for each of the points {list(points.shape)}; got "
            f"shape {list(coefficients.shape)}."
        ) from error


def _tiny(like: Tensor) -> float:
    """Lower limit of r2. Its square root, and the ratio of the two, still have finite derivatives."""
    return float(torch.finfo(like.dtype).tiny) ** 0.5

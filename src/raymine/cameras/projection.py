"""Points to pixels and pixels to directions, for one camera and for batches of pixels from mixed cameras."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from raymine.contracts import Camera

from .lens import (
    distort_fisheye,
    distort_opencv,
    fisheye_slope,
    opencv_slope,
    undistort_fisheye,
    undistort_opencv,
)

_MOST_STEPS = 20
_CONVERGED = 1e-9
_PROBES = 33


@dataclass(frozen=True)
class CameraTable:
    """Intrinsics of many cameras in one tensor, so that pixels of different cameras unproject in a few operations.

    `values` is [parameters, cameras]. Gathering cameras then keeps each parameter contiguous, which halves the time
    of a batch. Parameters 0..3 are 1/fx, 1/fy, cx, cy. Then follow, only if some camera needs them, k1 k2 p1 p2 k3
    (opencv) and a flag (1 or 0), k1 k2 k3 k4 (fisheye). A coefficient that a camera does not have is 0, which makes
    the lens the identity, so a batch never has to be split by model. `opencv_steps` and `fisheye_steps` are the most
    Newton steps that a camera of the table needs, measured in float64; 0 if no camera has the model.
    """

    values: Tensor
    opencv_steps: int
    fisheye_steps: int

    @staticmethod
    def build(
        cameras: Sequence[Camera], device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> CameraTable:
        """One column per camera, in order."""
        steps = {camera: _convergence(camera)[0] for camera in set(cameras) if camera.model != "pinhole"}
        opencv_steps = max((s for c, s in steps.items() if c.model == "opencv"), default=0)
        fisheye = [c for c in steps if c.model == "fisheye"]
        # With at least one step, the fisheye branch runs even if all coefficients are zero.
        fisheye_steps = max((max(1, steps[c]) for c in fisheye), default=0)
        columns = [_parameters(camera, opencv_steps > 0, fisheye_steps > 0) for camera in cameras]
        values = torch.tensor(columns, dtype=torch.float64).t().contiguous() if columns else torch.empty(4, 0)
        values = values.to(device=device, dtype=dtype)
        return CameraTable(values, opencv_steps, fisheye_steps)

    def directions(self, index: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Cameras [R] int64 and continuous pixel coordinates [R] -> unit directions [R, 3] in the camera frame."""
        return self.through(self.values.index_select(1, index), x, y).t().contiguous()

    def through(self, values: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """As `directions`, for parameters [parameters, R or 1] that are gathered already; returns [3, R]."""
        u = (x - values[2]) * values[0]
        v = (y - values[3]) * values[1]
        if self.opencv_steps:
            u, v = undistort_opencv(u, v, values[4:9].unbind(0), self.opencv_steps)
        if not self.fisheye_steps:
            return _through_plane(u, v)
        first = 9 if self.opencv_steps else 4
        is_fisheye = values[first] > 0
        # Far off the axis a pinhole point is not a valid fisheye angle. Zero keeps the unused branch finite.
        distance = torch.where(is_fisheye, torch.sqrt(u * u + v * v), 0.0)
        theta = undistort_fisheye(distance, values[first + 1 : first + 5].unbind(0), self.fisheye_steps)
        sine = torch.where(distance > 1e-12, torch.sin(theta) / distance.clamp(min=1e-12), 1.0)
        round_directions = torch.stack([sine * u, -sine * v, -torch.cos(theta)])
        return torch.where(is_fisheye, round_directions, _through_plane(u, v))


def camera_directions(camera: Camera, x: Tensor, y: Tensor) -> Tensor:
    """Continuous pixel coordinates [n] of one camera -> unit directions [n, 3] in the camera frame, dtype of `x`."""
    table = CameraTable.build([camera], x.device, x.dtype)
    return table.through(table.values, x, y).t().contiguous()


def unproject(camera: Camera, pose: np.ndarray | Tensor, xy: Tensor, distance: Tensor) -> Tensor:
    """Pixels [n, 2] at `distance` [n] along their rays -> world points [n, 3], dtype of `xy`.

    `distance` is measured from the camera centre along the ray, not along the optical axis.
    """
    pose = torch.as_tensor(pose).to(xy)
    directions = camera_directions(camera, xy[:, 0], xy[:, 1]) @ pose[:, :3].T
    return pose[:, 3] + directions * distance[:, None]


def project(camera: Camera, pose: np.ndarray | Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """World points [n, 3] -> continuous pixel coordinates [n, 2] and depth along the optical axis [n].

    Where depth is not positive, the point is behind the camera. A pinhole or opencv camera does not see it, and its
    pixel coordinates are finite but meaningless; a fisheye camera may still see it. Points far outside the picture may
    lie beyond the fold of a lens model and be projected into the picture. Differentiable in `points`.
    """
    pose = torch.as_tensor(pose).to(points)
    local = (points - pose[:, 3]) @ pose[:, :3]
    right, down, depth = local[:, 0], -local[:, 1], -local[:, 2]
    coefficients = (
        torch.tensor(camera.distortion, dtype=torch.float64).to(points).unbind(0) if camera.distortion else ()
    )
    if camera.model == "fisheye":
        radius = torch.sqrt(right * right + down * down)
        scale = distort_fisheye(torch.atan2(radius, depth), coefficients)
        scale = torch.where(radius > 1e-12, scale / radius.clamp(min=1e-12), 1.0)
        u, v = right * scale, down * scale
    else:
        safe = torch.where(depth.abs() > 1e-12, depth, 1e-12)
        u, v = right / safe, down / safe
        if camera.model == "opencv":
            u, v = distort_opencv(u, v, coefficients)
    return torch.stack([camera.fx * u + camera.cx, camera.fy * v + camera.cy], dim=1), depth


def field_of_view(camera: Camera) -> tuple[float, float]:
    """Horizontal and vertical field of view in degrees, without the distortion."""
    if camera.model == "fisheye":
        return float(np.degrees(camera.width / camera.fx)), float(np.degrees(camera.height / camera.fy))
    return (
        float(np.degrees(2 * np.arctan2(camera.width / 2, camera.fx))),
        float(np.degrees(2 * np.arctan2(camera.height / 2, camera.fy))),
    )


def lens_coverage(camera: Camera) -> float:
    """The share of the picture, 0..1, on which the lens model can be inverted; 1 for every plausible calibration."""
    return 1.0 if camera.model == "pinhole" else _convergence(camera)[1]


@lru_cache(maxsize=4096)
def _convergence(camera: Camera) -> tuple[int, float]:
    """On a grid over the picture: Newton steps until all invertible points converge, and the share of such points."""
    history = []
    for steps in range(1, _MOST_STEPS + 1):
        history.append(_residual(camera, steps))
        if bool((history[-1] < _CONVERGED).all()):
            return steps, 1.0
    invertible = history[-1] < 1e-6
    enough = (i + 1 for i, residual in enumerate(history) if bool((residual[invertible] < _CONVERGED).all()))
    return next(enough, _MOST_STEPS), float(invertible.double().mean())


def _residual(camera: Camera, steps: int) -> Tensor:
    """The error, in float64, of undistorting a grid over the picture in `steps` and distorting it again.

    A polynomial has further roots beyond its fold, where the picture would be mirrored. A root is valid only if the
    model does not fold between the optical axis and the root; otherwise the residual is infinite.
    """
    x = torch.linspace(0, camera.width, _PROBES, dtype=torch.float64)
    y = torch.linspace(0, camera.height, _PROBES, dtype=torch.float64)
    v, u = torch.meshgrid((y - camera.cy) / camera.fy, (x - camera.cx) / camera.fx, indexing="ij")
    coefficients = torch.tensor(camera.distortion, dtype=torch.float64).unbind(0)
    on_the_way = torch.linspace(0, 1, 17, dtype=torch.float64)[:, None, None]
    if camera.model == "fisheye":
        distance = torch.sqrt(u * u + v * v)
        theta = undistort_fisheye(distance, coefficients, steps)
        missed = (distort_fisheye(theta, coefficients) - distance).abs()
        slope = fisheye_slope(theta * on_the_way, coefficients)
    else:
        flat_u, flat_v = undistort_opencv(u, v, coefficients, steps)
        again_u, again_v = distort_opencv(flat_u, flat_v, coefficients)
        missed = torch.maximum((again_u - u).abs(), (again_v - v).abs())
        slope = opencv_slope(flat_u * on_the_way, flat_v * on_the_way, coefficients)
    return torch.where((slope > 0).all(dim=0), missed, torch.inf)


def _parameters(camera: Camera, with_opencv: bool, with_fisheye: bool) -> list[float]:
    row = [1.0 / camera.fx, 1.0 / camera.fy, camera.cx, camera.cy]
    if with_opencv:
        row += camera.distortion if camera.model == "opencv" else (0.0,) * 5
    if with_fisheye:
        row += (1.0, *camera.distortion) if camera.model == "fisheye" else (0.0,) * 5
    return row


def _through_plane(u: Tensor, v: Tensor) -> Tensor:
    length = torch.rsqrt(u * u + v * v + 1)
    return torch.stack([u * length, -v * length, -length])

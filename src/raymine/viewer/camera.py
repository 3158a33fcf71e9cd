"""Cameras of viser and of raymine.

viser gives the orientation of a camera as a quaternion (w, x, y, z) with x right, y down and z forward, its position,
its vertical field of view in radians, and the size of the canvas.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from raymine.cameras import from_opencv, matrix_to_quaternion, quaternion_to_matrix
from raymine.contracts import Camera


def pose_of(wxyz: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Orientation [4] and position [3] of a camera of viser -> pose [3, 4] of raymine."""
    return from_opencv(np.concatenate([quaternion_to_matrix(wxyz), np.asarray(position).reshape(3, 1)], axis=1))


def orientation_of(pose: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pose [3, 4] of raymine -> orientation [4] and position [3] of a camera of viser."""
    opencv = from_opencv(pose)
    return matrix_to_quaternion(opencv[:, :3]), opencv[:, 3]


def camera_of(seen: Any, width: int, height: int) -> Camera:
    """A pinhole camera with the field of view of viser's camera `seen`, for a picture of another size."""
    focal = 0.5 * height / math.tan(0.5 * float(seen.fov))
    return Camera(width, height, focal, focal, width / 2, height / 2)


def vertical_fov(camera: Camera) -> float:
    """The vertical field of view in radians of a camera, as if it were a pinhole camera; at most 170 degrees."""
    return min(2.0 * math.atan(0.5 * camera.height / camera.fy), math.radians(170.0))

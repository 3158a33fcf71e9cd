"""Poses: conversions between conventions, checks, similarity transforms. All in NumPy and float64.

Common conventions, as columns of the camera-to-world rotation:

    raymine, Blender, instant-ngp, nerfstudio   [right, up, back]
    OpenCV, COLMAP                              [right, down, forward], and COLMAP stores world-to-camera
    LLFF (poses_bounds.npy)                     [down, right, back]
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from raymine.contracts import Camera
from raymine.errors import ConfigError

RIGID_TOLERANCE = 1e-2
"""Largest entry of R^T R - I that counts as rounding. Files with three decimals pass, a scaled pose does not."""

FARTHEST = 1e9
"""Largest absolute value in a pose; its square and cube are still precise enough in float64."""


def from_opencv(pose: np.ndarray) -> np.ndarray:
    """Camera-to-world [3, 4] with x right, y down, z forward -> raymine's convention. It is its own inverse."""
    pose = np.asarray(pose, dtype=np.float64)[:3, :4]
    return pose * np.array([1.0, -1.0, -1.0, 1.0])


def quaternion_to_matrix(quaternion: np.ndarray) -> np.ndarray:
    """Quaternion (w, x, y, z), not necessarily of unit length but not 0 -> rotation [3, 3]."""
    w, x, y, z = np.asarray(quaternion, dtype=np.float64) / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def matrix_to_quaternion(rotation: np.ndarray) -> np.ndarray:
    """Rotation [3, 3] -> unit (w, x, y, z) with w >= 0.

    The quaternion is the leading eigenvector of a symmetric 4x4 matrix. This needs no case distinction and is precise
    near half turns too.
    """
    m = np.asarray(rotation, dtype=np.float64)
    k = np.array(
        [
            [m[0, 0] + m[1, 1] + m[2, 2], m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]],
            [m[2, 1] - m[1, 2], m[0, 0] - m[1, 1] - m[2, 2], m[0, 1] + m[1, 0], m[0, 2] + m[2, 0]],
            [m[0, 2] - m[2, 0], m[0, 1] + m[1, 0], m[1, 1] - m[0, 0] - m[2, 2], m[1, 2] + m[2, 1]],
            [m[1, 0] - m[0, 1], m[0, 2] + m[2, 0], m[1, 2] + m[2, 1], m[2, 2] - m[0, 0] - m[1, 1]],
        ]
    )
    vector = np.linalg.eigh(k)[1][:, -1]
    return vector if vector[0] >= 0 else -vector


def from_colmap(quaternion: np.ndarray, translation: np.ndarray) -> np.ndarray:
    """COLMAP world-to-camera quaternion (w, x, y, z) and translation [3] -> raymine pose [3, 4]."""
    world_to_camera = quaternion_to_matrix(quaternion)
    rotation = world_to_camera.T
    centre = -rotation @ np.asarray(translation, dtype=np.float64)
    return from_opencv(np.concatenate([rotation, centre[:, None]], axis=1))


def to_colmap(pose: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """raymine pose [3, 4] -> COLMAP world-to-camera quaternion (w, x, y, z) and translation [3]."""
    opencv = from_opencv(pose)
    rotation = opencv[:, :3].T
    return matrix_to_quaternion(rotation), -rotation @ opencv[:, 3]


def from_llff(pose: np.ndarray) -> np.ndarray:
    """LLFF camera-to-world [3, 4+] with columns [down, right, back, centre, ...] -> raymine pose [3, 4]."""
    pose = np.asarray(pose, dtype=np.float64)
    return np.stack([pose[:, 1], -pose[:, 0], pose[:, 2], pose[:, 3]], axis=1)


def to_llff(pose: np.ndarray) -> np.ndarray:
    """raymine pose [3, 4] -> LLFF pose [3, 4] with columns [down, right, back, centre]."""
    pose = np.asarray(pose, dtype=np.float64)
    return np.stack([-pose[:, 1], pose[:, 0], pose[:, 2], pose[:, 3]], axis=1)


def look_at(position: ArrayLike, target: ArrayLike, up: ArrayLike = (0.0, 0.0, 1.0)) -> np.ndarray:
    """The pose [3, 4] of a camera at `position` [3] that looks at `target` [3], with `up` [3] up in the picture.

    All three are in one world, and the pose is in the same one. If the view direction is parallel to `up`, some
    perpendicular direction becomes the right of the picture.
    """
    position, target, up = (_vector(v, n) for v, n in ((position, "position"), (target, "target"), (up, "up")))
    back, height = position - target, float(np.linalg.norm(up))
    distance = float(np.linalg.norm(back))
    if distance == 0:
        raise ConfigError(f"`target` must differ from `position`, got {position.tolist()} for both.")
    if height == 0:
        raise ConfigError("`up` must be a direction, got a vector of length 0.")
    back = back / distance
    right = np.cross(up, back)
    if np.linalg.norm(right) <= 1e-9 * height:
        right = np.cross(np.eye(3)[np.argmin(np.abs(back))], back)
    right = right / np.linalg.norm(right)
    return np.stack([right, np.cross(back, right), back, position], axis=1)


def _vector(value: ArrayLike, name: str) -> np.ndarray:
    """`value` as [3] float64; `ConfigError` if it is not three finite numbers of a possible size."""
    try:
        vector = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        vector = np.empty(0)
    if vector.shape != (3,) or not np.isfinite(vector).all() or np.abs(vector).max() > FARTHEST:
        raise ConfigError(f"`{name}` must be three finite numbers up to {FARTHEST:g}, got {value!r}.")
    return vector


def pose_fault(pose: np.ndarray) -> str | None:
    """Why a [3, 4] pose is not a rigid transform, as words that follow "the pose"; None for a valid pose."""
    if pose.shape != (3, 4):
        return f"has shape {list(pose.shape)}, not [3, 4]"
    if not np.isfinite(pose).all():
        bad = "NaN" if np.isnan(pose).any() else "an infinite number"
        return f"contains {bad}"
    if np.abs(pose).max() > FARTHEST:
        return f"contains {pose.flat[np.abs(pose).argmax()]:.3g}, which is beyond any scene"
    rotation = pose[:, :3]
    gram = rotation.T @ rotation
    lengths = np.sqrt(np.diag(gram))
    if np.abs(gram - np.eye(3)).max() > RIGID_TOLERANCE:
        if lengths.min() > 0 and np.abs(gram - lengths.mean() ** 2 * np.eye(3)).max() < RIGID_TOLERANCE * gram.max():
            return f"is not rigid: its rotation is scaled by {lengths.mean():.4g}"
        largest = np.abs(gram - np.eye(3)).max()
        return f"is not rigid: its rotation is not orthonormal (largest deviation {largest:.3g})"
    if np.linalg.det(rotation) < 0:
        return "is not rigid: its rotation has determinant -1 (a mirror image)"
    return None


def similarity(rotation: np.ndarray, centre: np.ndarray, scale: float) -> np.ndarray:
    """[4, 4] that maps x to `scale * rotation @ (x - centre)`."""
    matrix = np.eye(4)
    matrix[:3, :3] = scale * rotation
    matrix[:3, 3] = -scale * (rotation @ centre)
    return matrix


def apply_similarity(matrix: np.ndarray, poses: np.ndarray) -> np.ndarray:
    """Camera-to-world poses [..., 3, 4] in a world that is transformed by the similarity [4, 4].

    Camera centres are transformed as points. Rotations are rotated but not scaled.
    """
    scale = np.cbrt(np.linalg.det(matrix[:3, :3]))
    rotation = matrix[:3, :3] / scale @ poses[..., :3]
    centre = poses[..., 3:] * scale
    centre = (matrix[:3, :3] / scale) @ centre + matrix[:3, 3:]
    return np.concatenate([rotation, centre], axis=-1)


def turn_clockwise(camera: Camera, pose: np.ndarray, turns: int) -> tuple[Camera, np.ndarray]:
    """Camera and pose of a picture that was rotated clockwise by `turns` quarter turns.

    A picture with an EXIF orientation is rotated when it is shown. If its pose was computed on the stored pixels, the
    camera must be rotated too. The tangential coefficients (p2, p1) rotate like a vector.
    """
    for _ in range(turns % 4):
        distortion = camera.distortion
        if camera.model == "opencv":
            k1, k2, p1, p2, k3 = distortion
            distortion = (k1, k2, p2, -p1, k3)
        camera = replace(
            camera,
            width=camera.height,
            height=camera.width,
            fx=camera.fy,
            fy=camera.fx,
            cx=camera.height - camera.cy,
            cy=camera.cx,
            distortion=distortion,
        )
        pose = np.stack([pose[:, 1], -pose[:, 0], pose[:, 2], pose[:, 3]], axis=1)
    return camera, pose

"""Camera paths for novel views, derived from the cameras of the scene: an orbit, a spiral and a still camera.

Every path is in normalised coordinates (after `Scene.normalisation`), where +z is up. Poses are camera-to-world
[n, 3, 4] with x right, y up, z backward. `path_file.py` reads paths from files, `curves.py` interpolates key poses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from raymine.cameras import look_at
from raymine.contracts import Camera, Scene
from raymine.errors import ConfigError, option

from .curves import require_views

MOST_PIXELS = 1 << 25
"""Largest picture that is rendered, a little more than 7680x4320: its colour, opacity and depth take 0.7 GB."""


@dataclass(frozen=True)
class CameraPath:
    """n views to render: poses [n, 3, 4] float64, one camera per pose, times [n] in 0..1 for dynamic scenes."""

    poses: np.ndarray
    cameras: tuple[Camera, ...]
    times: np.ndarray | None = None

    def __post_init__(self) -> None:
        n = len(self.poses)
        if self.poses.shape != (n, 3, 4) or n == 0:
            raise ConfigError(f"A camera path needs poses of shape [n, 3, 4], n >= 1; got {self.poses.shape}.")
        if not np.isfinite(self.poses).all():
            raise ConfigError("A camera path holds a pose with a number that is not finite.")
        if len(self.cameras) != n or (self.times is not None and self.times.shape != (n,)):
            raise ConfigError(f"A camera path of {n} poses needs {n} cameras and, if any, {n} times.")

    def __len__(self) -> int:
        return len(self.poses)


def require_size(width: int, height: int) -> None:
    """Raise `ConfigError` for a picture without pixels, or with more than `MOST_PIXELS`."""
    if width < 1 or height < 1:
        raise ConfigError(f"A picture must be at least 1x1 pixels, got {width}x{height}.")
    if width * height > MOST_PIXELS:
        raise ConfigError(
            f"A picture may have up to {MOST_PIXELS / 1e6:.1f} million pixels, such as 7680x4320;"
            f" {width:.7g}x{height:.7g} is too large.",
            hint=f"Give a smaller {option('size')}.",
        )


def with_fov(camera: Camera, degrees: float) -> Camera:
    """The camera with another vertical field of view; the size of its picture and the shape of pixels do not change."""
    focal = 0.5 * camera.height / math.tan(math.radians(degrees) / 2.0)
    return Camera(camera.width, camera.height, focal * camera.fx / camera.fy, focal, camera.cx, camera.cy)


def novel_camera(camera: Camera, size: tuple[int, int] | None = None) -> Camera:
    """A pinhole camera with the vertical field of view of `camera`, a central principal point and no distortion.

    `size` is (width, height) in pixels. A wider picture shows more at the sides; it is not stretched. A vertical field
    of view above 110 degrees (fisheye) is reduced to 110, because a perspective picture cannot show more.
    """
    width, height = size if size is not None else (camera.width, camera.height)
    require_size(width, height)
    widest = 0.5 * height / math.tan(math.radians(55.0))
    focal_y = max(camera.fy * height / camera.height, widest)
    focal_x = focal_y * camera.fx / camera.fy
    return Camera(width, height, focal_x, focal_y, width / 2, height / 2)


def orbit(scene: Scene, n: int, *, size: tuple[int, int] | None = None) -> CameraPath:
    """n views on a circle around the focus point of the cameras, at their median distance and elevation.

    If the cameras leave a gap of more than a third of the circle, the path swings back and forth over the part that
    they cover, because no image shows the rest. The path is closed, and the last view does not repeat the first.
    """
    poses = _all_poses(scene, n)
    height = np.median(_elevations(poses, focus_point(poses)))
    return _static(scene, _around(poses, np.full(n, height), turns=1.0), size)


def spiral(scene: Scene, n: int, *, turns: float = 2.0, size: tuple[int, int] | None = None) -> CameraPath:
    """n views on a spiral. The path is closed, and every view looks at one point.

    Forward-facing cameras: a spiral around their average pose. In each direction it spans the 80th percentile of the
    cameras' offsets from the average, and it looks at the point at the focus depth, as is usual for such scenes.

    Other cameras have no average pose: a path as in `orbit`, with `turns` turns, that rises from the 10th percentile
    of the cameras' elevations to the 90th and comes back. Up stays up, and the view stays on the focus point.
    """
    poses = _all_poses(scene, n)
    if not forward_facing(scene):
        low, high = np.percentile(_elevations(poses, focus_point(poses)), (10.0, 90.0))
        rise = 0.5 - 0.5 * np.cos(np.arange(n) / n * 2.0 * math.pi)
        return _static(scene, _around(poses, low + (high - low) * rise, turns), size)
    middle = average_pose(poses)
    rotation, centre = middle[:, :3], middle[:, 3]
    reach = np.percentile(np.abs((poses[:, :, 3] - centre) @ rotation), 80.0, axis=0)
    depth = max(float(-(focus_point(poses) - centre) @ rotation[:, 2]), 1e-3)
    target = centre - depth * rotation[:, 2]
    views = []
    for angle in np.arange(n) / n * 2.0 * math.pi * turns:
        local = np.array([math.cos(angle), -math.sin(angle), -math.sin(angle / max(turns, 1e-9))]) * reach
        views.append(look_at(centre + rotation @ local, target, up=rotation[:, 1]))
    return _static(scene, np.stack(views), size)


def still(scene: Scene, n: int, *, size: tuple[int, int] | None = None) -> CameraPath:
    """n views from one place, that of the first test view, or of the first frame if there is none."""
    poses = _all_poses(scene, n)
    place = (*scene.of_split("test"), 0)[0]
    return _static(scene, np.repeat(poses[place : place + 1], n, 0), size)


Moment = float | Literal["sweep"]
"""A time in 0..1, or `sweep`: time runs from 0 to 1 along the path."""


def at_time(path: CameraPath, scene: Scene, moment: Moment) -> CameraPath:
    """The path at one moment of a dynamic scene, or with time running from 0 to 1. `ConfigError` for a static scene."""
    require_moment(scene, moment)
    n = len(path)
    times = np.linspace(0.0, 1.0, n) if moment == "sweep" else np.full(n, float(moment))
    return replace(path, times=times)


def require_moment(scene: Scene, moment: Moment) -> None:
    """Raise `ConfigError` for a time outside 0..1, and for any time in a scene that has none."""
    if moment != "sweep" and not 0.0 <= moment <= 1.0:
        raise ConfigError(f"{option('time')} must be in 0..1, got {moment:g}: 0 is the first moment, 1 the last.")
    if not scene.dynamic:
        raise ConfigError(
            f"{option('time')} was given, and the frames of this scene have no times: it does not move.",
            hint=f"Leave out {option('time')}.",
        )


def _elevations(poses: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """The cameras' elevations [n] in radians, seen from `centre`; at most 80 degrees.

    Exactly overhead, "up" would have no direction in the picture.
    """
    offsets = poses[:, :, 3] - centre
    sines = offsets[:, 2] / np.maximum(np.linalg.norm(offsets, axis=1), 1e-9)
    return np.clip(np.arcsin(np.clip(sines, -1.0, 1.0)), math.radians(-80.0), math.radians(80.0))


def _around(poses: np.ndarray, elevation: np.ndarray, turns: float) -> np.ndarray:
    """Views [n, 3, 4] that circle the focus point of `poses` at their median distance and at `elevation` [n]."""
    centre = focus_point(poses)
    offsets = poses[:, :, 3] - centre
    azimuth = _azimuths(np.arctan2(offsets[:, 1], offsets[:, 0]), len(elevation), turns)
    flat = np.cos(elevation)
    directions = np.stack([np.cos(azimuth) * flat, np.sin(azimuth) * flat, np.sin(elevation)], axis=1)
    eyes = centre + float(np.median(np.linalg.norm(offsets, axis=1))) * directions
    return np.stack([look_at(eye, centre) for eye in eyes])


def focus_point(poses: np.ndarray) -> np.ndarray:
    """The point nearest to all optical axes in the least-squares sense; poses [n, 3, 4] -> [3].

    For nearly parallel axes (or a single camera) that point is not defined. Then the result is the projection of the
    origin, where normalisation puts the region of interest, onto the mean axis.
    """
    origins, axes = poses[:, :, 3], -poses[:, :, 2]
    axes = axes / np.linalg.norm(axes, axis=1, keepdims=True)
    across = np.eye(3) - axes[:, :, None] * axes[:, None, :]
    total = across.sum(axis=0)
    if np.linalg.eigvalsh(total)[0] > 1e-3 * len(poses):
        point = np.linalg.solve(total, (across @ origins[:, :, None]).sum(axis=0)[:, 0])
        if np.median(((point - origins) * axes).sum(axis=1)) > 0:
            return point
    centre, axis = origins.mean(axis=0), axes.mean(axis=0)
    axis = axis / max(float(np.linalg.norm(axis)), 1e-9)
    depth = float(-centre @ axis)
    return centre + axis * (depth if depth > 0.1 else 1.0)


def forward_facing(scene: Scene) -> bool:
    """Whether all cameras look in roughly the same direction: the mean of their unit axes is longer than 0.85."""
    axes = np.stack([-frame.pose[:, 2] for frame in scene.frames])
    axes = axes / np.linalg.norm(axes, axis=1, keepdims=True)
    return float(np.linalg.norm(axes.mean(axis=0))) > 0.85


def average_pose(poses: np.ndarray) -> np.ndarray:
    """The mean pose [3, 4] of poses [n, 3, 4]: mean position, mean axis and mean up vector, made orthonormal."""
    centre = poses[:, :, 3].mean(axis=0)
    return look_at(centre, centre - poses[:, :, 2].mean(axis=0), up=poses[:, :, 1].mean(axis=0))


def _all_poses(scene: Scene, n: int) -> np.ndarray:
    require_views(n)
    return np.stack([np.asarray(frame.pose, dtype=np.float64) for frame in scene.frames])


def _static(scene: Scene, poses: np.ndarray, size: tuple[int, int] | None) -> CameraPath:
    camera = novel_camera(scene.cameras[scene.frames[0].camera], size)
    times = np.linspace(0.0, 1.0, len(poses)) if scene.dynamic else None
    return CameraPath(poses, (camera,) * len(poses), times)


def _azimuths(seen: np.ndarray, n: int, turns: float) -> np.ndarray:
    """Angles [n] of the path: whole circles, or swings over the part that the cameras, at angles `seen`, cover."""
    ordered = np.sort(seen)
    gaps = np.diff(np.append(ordered, ordered[0] + 2.0 * math.pi))
    widest = int(gaps.argmax())
    phase = np.arange(n) / n * 2.0 * math.pi * turns
    if len(seen) < 3 or gaps[widest] <= 2.0 * math.pi / 3.0:
        return ordered[0] + phase
    half = 0.5 * (2.0 * math.pi - gaps[widest])
    middle = ordered[widest] + gaps[widest] + half
    return middle + half * np.sin(phase)

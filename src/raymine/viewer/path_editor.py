"""A camera path made of views that the user has chosen, saved as a file that `raymine render --path` reads."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raymine.contracts import Scene
from raymine.errors import ConfigError
from raymine.export import CameraPath, interpolate_poses, novel_camera, to_file, with_fov
from raymine.export.curves import interpolate_values
from raymine.files import resource_error


@dataclass(frozen=True)
class Key:
    """One chosen view: pose [3, 4] in the normalised world, vertical field of view in degrees, time in 0..1."""

    pose: np.ndarray
    fov: float
    time: float | None = None


class PathEditor:
    """The chosen views, in order."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.keys: list[Key] = []

    def add(self, pose: np.ndarray, fov: float, time: float | None = None) -> None:
        """Add a view at the end. fov: vertical, in radians."""
        self.keys.append(Key(pose, min(170.0, max(1.0, math.degrees(fov))), time))

    def remove_last(self) -> None:
        if self.keys:
            self.keys.pop()

    def path(self, frames: int, *, size: tuple[int, int] | None = None, closed: bool = False) -> CameraPath:
        """A smooth path of `frames` views through the chosen ones. closed: it leads back to the first."""
        if not self.keys:
            raise ConfigError("The path has no views yet.", hint="Move the camera, and add a view.")
        poses = interpolate_poses(np.stack([key.pose for key in self.keys]), frames, closed=closed)
        fovs = interpolate_values(np.array([key.fov for key in self.keys]), frames, closed=closed)
        base = novel_camera(self.scene.cameras[self.scene.frames[0].camera], size)
        cameras = tuple(with_fov(base, float(fov)) for fov in fovs)
        times = None
        if self.scene.dynamic:
            stated = np.array([0.0 if key.time is None else key.time for key in self.keys])
            times = interpolate_values(stated, frames, closed=closed)
        return CameraPath(poses, cameras, times)

    def save(self, folder: Path, name: str, path: CameraPath) -> Path:
        """Write the path to `<folder>/<name>.json`, or to the next free name. Nothing is overwritten."""
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).name.removesuffix(".json")).strip("-.")[:80] or "path"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise resource_error(error, "write the camera path", folder) from error
        target, number = folder / f"{safe}.json", 2
        while target.exists():
            target, number = folder / f"{safe}-{number}.json", number + 1
        to_file(path, self.scene, target)
        return target

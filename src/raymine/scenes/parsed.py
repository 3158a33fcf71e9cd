"""The result of a reader, before normalisation: frames, and every problem that was found.

Readers do not stop at the first problem, and do not raise for mistakes of the user. They return what they could read;
`load` and `check` decide what to do with it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from raymine.contracts import Camera, CameraModel, Split

from .problems import Problem


@dataclass(frozen=True)
class Intrinsics:
    """A camera as stated in a file: in pixels of an image size, or by angles of view, which do not depend on the size.

    width, height: None means that focal lengths are in pixels of the image file. angle_x, angle_y: full angles of view
    in radians, used if there is no focal length.
    """

    width: int | None = None
    height: int | None = None
    fx: float | None = None
    fy: float | None = None
    cx: float | None = None
    cy: float | None = None
    angle_x: float | None = None
    angle_y: float | None = None
    model: CameraModel = "pinhole"
    distortion: tuple[float, ...] = ()

    def camera(self, width: int, height: int) -> Camera:
        """The camera of an image of this size in pixels. If only one focal length is known, both axes use it."""
        own_width = width if self.width is None else self.width
        own_height = height if self.height is None else self.height
        fx = self.fx if self.fx is not None else _focal(own_width, self.angle_x)
        fy = self.fy if self.fy is not None else _focal(own_height, self.angle_y)
        if fx is None and fy is None:
            raise ValueError("intrinsics state neither a focal length nor an angle of view")
        return Camera(
            width=own_width,
            height=own_height,
            fx=fx if fx is not None else fy or 0.0,
            fy=fy if fy is not None else fx or 0.0,
            cx=own_width / 2 if self.cx is None else self.cx,
            cy=own_height / 2 if self.cy is None else self.cy,
            model=self.model,
            distortion=self.distortion,
        ).resized(width, height)


def _focal(size: int, angle: float | None) -> float | None:
    """Pixels; infinite for an angle of 0 and NaN for an infinite one, which the check of the camera then refuses."""
    if angle is None:
        return None
    if not math.isfinite(angle):
        return math.nan
    slope = float(np.tan(0.5 * angle))
    return 0.5 * size / slope if slope else float("inf")


@dataclass(frozen=True)
class RawFrame:
    """One frame in source units. name: the image as named in the file. where: the place in the file, for messages.

    image: None if the file does not exist. pose: [3, 4] camera-to-world. near, far: depths of the nearest and farthest
    content in this image, if the file has them. depth: its depth map, if there is one.
    """

    name: str
    where: str
    image: Path | None
    intrinsics: Intrinsics
    pose: np.ndarray
    split: Split | None = None
    time: float | None = None
    mask: Path | None = None
    near: float | None = None
    far: float | None = None
    depth: Path | None = None


@dataclass
class Parsed:
    """Everything that a reader found.

    object_scene: the format defines the units (Blender: the object fits +-1.5), so poses are not normalised.
    own_split: whether the files assign frames to splits. aabb_scale: instant-ngp's hint at the size of the scene.
    premade: factor by which the chosen images are already smaller than the full-size images.
    points: [n, 3] scene points in source units, if the files have some.
    unused_keys: keys of the files that hold content without a use, and how often they occur.
    depth_unit: source units per number in a depth map.
    """

    root: Path
    format: str
    source: str
    frames: list[RawFrame] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    object_scene: bool = False
    own_split: bool = False
    aabb_scale: float | None = None
    premade: int = 1
    points: np.ndarray | None = None
    unused_keys: Counter[str] = field(default_factory=Counter)
    depth_unit: float = 1e-3

    def error(self, file: str, what: str, fix: str, kind: str = "format") -> None:
        """Record a problem that prevents training."""
        self.problems.append(Problem(file, what, fix, "error", kind))

    def warn(self, file: str, what: str, fix: str, kind: str = "format") -> None:
        """Record a problem that does not prevent training."""
        self.problems.append(Problem(file, what, fix, "warning", kind))

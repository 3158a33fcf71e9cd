"""A scene before its images are decoded: cameras, posed frames, bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

CameraModel = Literal["pinhole", "opencv", "fisheye"]
Split = Literal["train", "val", "test"]


@dataclass(frozen=True)
class Camera:
    """Intrinsics in pixels of an image `width` x `height`; the centre of the first pixel is (0.5, 0.5).

    `distortion` is () for pinhole; (k1, k2, p1, p2, k3) for opencv; (k1, k2, k3, k4) for fisheye (equidistant).
    """

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    model: CameraModel = "pinhole"
    distortion: tuple[float, ...] = ()

    def resized(self, width: int, height: int) -> Camera:
        """The same camera over an image of another size; x and y scale separately."""
        sx, sy = width / self.width, height / self.height
        return replace(
            self, width=width, height=height, fx=self.fx * sx, fy=self.fy * sy, cx=self.cx * sx, cy=self.cy * sy
        )


@dataclass(frozen=True)
class Frame:
    """One posed image. `camera` indexes `Scene.cameras`; `pose` is [3, 4] float64 camera-to-world.

    time: in 0..1 for a dynamic scene. near, far: limits of this frame's rays in world units; None uses the scene's.
    depth: a depth map (`scenes/depth.py`), or None.
    """

    image: Path
    camera: int
    pose: np.ndarray
    split: Split = "train"
    time: float | None = None
    mask: Path | None = None
    near: float | None = None
    far: float | None = None
    depth: Path | None = None


@dataclass(frozen=True)
class Bounds:
    """Where samples may lie, in world units: an inner box (level 0 of the occupancy grid), doubled `levels` - 1 times.

    A scene with `levels` == 1 is bounded. `near` and `far` clip every ray.
    """

    low: tuple[float, float, float] = (-1.5, -1.5, -1.5)
    high: tuple[float, float, float] = (1.5, 1.5, 1.5)
    levels: int = 1
    near: float = 0.05
    far: float = 1e3

    @property
    def unbounded(self) -> bool:
        return self.levels > 1


@dataclass(frozen=True)
class Scene:
    """Everything that is known about a scene before its images are decoded.

    `normalisation` is the [4, 4] similarity already applied to every pose (source world to raymine world).
    `background` is the colour behind RGBA images where a fixed one is needed (evaluation); None means that images are
    opaque. `decisions` are sentences for the user: which format, split and scale were chosen, and why. `warnings`
    describe problems that do not prevent training. `depth_unit`: units of the scene's own world per number in a depth
    map. `downscale` is what was asked for; `divided` is the integer by which raymine divides the size of the image
    files, which is 1 where the scene comes with a folder of images of the smaller size.
    """

    root: Path
    format: str
    cameras: tuple[Camera, ...]
    frames: tuple[Frame, ...]
    bounds: Bounds
    background: tuple[float, float, float] | None
    normalisation: np.ndarray
    downscale: int = 1
    decisions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    depth_unit: float = 1e-3
    divided: int = 1

    def of_split(self, split: Split) -> tuple[int, ...]:
        """Indices into `frames` of one split, in file order."""
        return tuple(i for i, f in enumerate(self.frames) if f.split == split)

    def reaching(self, levels: int) -> Scene:
        """The scene with at least this many nested boxes, where it is unbounded; rays reach as far as the largest."""
        bounds = self.bounds
        if not bounds.unbounded or levels <= bounds.levels:
            return self
        outer = max(b - a for a, b in zip(bounds.low, bounds.high, strict=True)) * 2.0 ** (levels - 2)
        return replace(self, bounds=replace(bounds, levels=levels, far=max(bounds.far, 4 * outer)))

    @property
    def scale(self) -> float:
        """Normalised units per unit of the scene's own world. Divide a depth by it to get one in your own units."""
        return float(np.cbrt(np.linalg.det(self.normalisation[:3, :3])))

    @property
    def dynamic(self) -> bool:
        """Whether frames have times."""
        return any(f.time is not None for f in self.frames)

    @property
    def moves(self) -> bool:
        """Whether frames have different times, so that a static model cannot show all of them."""
        return len({f.time for f in self.frames if f.time is not None}) > 1

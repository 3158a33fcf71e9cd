"""COLMAP scenes: a sparse model (binary or text) and a folder of images.

Besides poses, the model has the points that each image sees. They give the depth range of the content, which the
normalisation uses.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from raymine.cameras import from_colmap
from raymine.scenes.images import MOST_PIXELS, ImageFinder
from raymine.scenes.parsed import Intrinsics, Parsed, RawFrame

from .colmap_model import (
    SUPPORTED,
    ModelFileError,
    ModelImage,
    ModelPoints,
    UnknownModelError,
    read_cameras,
    read_images,
    read_points,
)
from .folders import choose_folder

_PLACES = ("sparse/0", "sparse", "colmap/sparse/0", "colmap/sparse", "colmap", ".")
_AGAIN = "Export the model again with COLMAP."
_FEWEST_POINTS = 20


def find_model(root: Path) -> Path | None:
    """The folder with a complete model (cameras and images), or None."""
    return next((root / place for place in _PLACES if _complete(root / place)), None)


def find_partial_model(root: Path) -> Path | None:
    """The cameras or images file of an incomplete model, or None."""
    for place in _PLACES:
        for stem in ("cameras", "images"):
            file = _file(root / place, stem)
            if file is not None and not _complete(root / place):
                return file
    return None


def parse_colmap(root: Path, downscale: int) -> Parsed:
    """Reads the model below `root`. `root` may also be the folder of the model itself."""
    model = find_model(root)
    assert model is not None, "the caller has found a model"
    base = _image_root(root)
    parsed = Parsed(base, "colmap", Path(os.path.relpath(model, base)).as_posix())
    cameras = _read_intrinsics(model, parsed)
    images = _read_images(model, parsed)
    if cameras is None or images is None:
        return parsed
    folder = choose_folder(base, downscale, parsed)
    finder = ImageFinder(folder or base)
    points = _read_points(model, parsed)
    for image in images:
        where = f"{parsed.source}/images ({image.name})"
        if image.camera not in cameras:
            parsed.error(where, f"uses camera {image.camera}, which the model does not have.", _AGAIN, "camera-model")
            continue
        intrinsics = cameras[image.camera]
        if intrinsics is None:
            continue
        frame = RawFrame(image.name, where, finder.find(image.name), intrinsics, _pose(image))
        parsed.frames.append(frame if points is None else _with_depths(frame, image, points))
    return parsed


def _pose(image: ModelImage) -> np.ndarray:
    """The pose [3, 4]; NaN if the quaternion has no direction, which the check of poses reports."""
    quaternion, largest = image.quaternion, float(np.abs(image.quaternion).max())
    if not (0 < largest < np.inf and np.isfinite(image.translation).all()):
        return np.full((3, 4), np.nan)
    # Divided by its largest number, a quaternion of any length has a norm that is finite and not zero.
    scaled = quaternion if 1e-100 < largest < 1e100 else quaternion / largest
    with np.errstate(over="ignore", invalid="ignore"):
        return from_colmap(scaled, image.translation)


def _complete(folder: Path) -> bool:
    return _file(folder, "cameras") is not None and _file(folder, "images") is not None


def _file(folder: Path, stem: str) -> Path | None:
    """A file of the model. Binary takes precedence over text, as in COLMAP."""
    return next((p for s in (".bin", ".txt") if os.path.lexists(p := folder / f"{stem}{s}")), None)


def _image_root(root: Path) -> Path:
    """The scene folder: `root`, or if that is the folder of a model, the nearest parent with images."""
    if _complete(root):
        for folder in (root, *list(root.resolve().parents)[:3]):
            if choose_folder(folder, 1, Parsed(folder, "", "")) is not None:
                return folder
    return root


def _read_intrinsics(model: Path, parsed: Parsed) -> dict[int, Intrinsics | None] | None:
    """Cameras by id; None for a camera of an unsupported model, which is reported and whose frames are left out."""
    file = _file(model, "cameras")
    assert file is not None
    name = f"{parsed.source}/{file.name}"
    fix = f"Supported models: {SUPPORTED}. Undistort the images with COLMAP's image_undistorter, or refit with OPENCV."
    cameras: dict[int, Intrinsics | None] = {}
    try:
        stored = read_cameras(file)
    except ModelFileError as error:
        parsed.error(name, str(error), _AGAIN, "model-file")
        return None
    except UnknownModelError as error:
        parsed.error(name, f"has a camera of the unknown model {error}.", fix, "camera-model")
        return None
    for number, camera in stored.items():
        if not (1 <= camera.width <= MOST_PIXELS and 1 <= camera.height <= MOST_PIXELS):
            cameras[number] = None
            what = f"camera {number} is for images of {camera.width}x{camera.height} pixels."
            parsed.error(name, what, "Correct the size, or export the model again with COLMAP.", "intrinsics")
            continue
        cameras[number] = camera.intrinsics()
        if cameras[number] is None:
            what = f"camera {number} has the model {camera.model}, which raymine does not support."
            parsed.error(name, what, fix, "camera-model")
    return cameras


def _read_images(model: Path, parsed: Parsed) -> list[ModelImage] | None:
    file = _file(model, "images")
    assert file is not None
    name = f"{parsed.source}/{file.name}"
    try:
        images = read_images(file)
    except ModelFileError as error:
        parsed.error(name, str(error), _AGAIN, "model-file")
        return None
    if not images:
        parsed.error(name, "has no images.", "Check that COLMAP registered some.", "model-file")
    return images


def _read_points(model: Path, parsed: Parsed) -> ModelPoints | None:
    """The scene points, sorted by id. None if they are missing, too few or damaged; depths are then unknown."""
    file = _file(model, "points3D")
    if file is None:
        return None
    try:
        points = read_points(file)
    except ModelFileError as error:
        name = f"{parsed.source}/{file.name}"
        parsed.warn(name, f"{error} The depth of the scene is estimated from the cameras.", _AGAIN, "model-file")
        return None
    finite = np.isfinite(points.positions).all(axis=1)
    points = ModelPoints(points.ids[finite], points.positions[finite])
    if len(points.ids) < _FEWEST_POINTS:
        return None
    order = np.argsort(points.ids)
    parsed.points = points.positions
    return ModelPoints(points.ids[order], points.positions[order])


def _with_depths(frame: RawFrame, image: ModelImage, points: ModelPoints) -> RawFrame:
    """The frame with near and far from the points that it sees. The outermost 1 % are ignored as mismatches."""
    seen = image.points[image.points >= 0]
    at = np.searchsorted(points.ids, seen).clip(max=len(points.ids) - 1)
    positions = points.positions[at[points.ids[at] == seen]]
    depth = (frame.pose[:, 3] - positions) @ frame.pose[:, 2]
    depth = depth[depth > 0]
    if len(depth) < _FEWEST_POINTS:
        return frame
    near, far = np.quantile(depth, (0.01, 0.99))
    return replace(frame, near=float(near), far=float(far))

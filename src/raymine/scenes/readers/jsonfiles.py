"""Tolerant reading of JSON scene files: a value that is not valid is reported, and reading continues."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from raymine.contracts import CameraModel
from raymine.files import UnreadableFile, read_json
from raymine.scenes.images import MOST_PIXELS
from raymine.scenes.parsed import Intrinsics, Parsed

_OPENCV_NAMES = {"OPENCV", "SIMPLE_RADIAL", "RADIAL", "PERSPECTIVE", "PINHOLE", "SIMPLE_PINHOLE"}
_FISHEYE_NAMES = {"OPENCV_FISHEYE", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE", "FISHEYE"}
_INTRINSIC_KEYS = ("w", "h", "fl_x", "fl_y", "cx", "cy", "camera_angle_x", "camera_angle_y", "camera_model")
_LENS_KEYS = ("is_fisheye", "k1", "k2", "k3", "k4", "p1", "p2")


def read_object(path: Path, parsed: Parsed) -> dict[str, Any] | None:
    """The JSON object in a file. If there is none, records a problem and returns None."""
    name = path.name
    try:
        document = read_json(path)
    except UnreadableFile as error:
        parsed.error(name, error.what, "Write the file again, or restore it from where it came from.", "json")
        return None
    if isinstance(document, dict):
        return document
    what = f"holds a JSON {type(document).__name__}, not an object with `frames`."
    parsed.error(name, what, "Put a transforms file in its place.", "json")
    return None


def read_frames(document: dict[str, Any], source: str, parsed: Parsed) -> list[dict[str, Any]]:
    """The entries of `frames` that are objects. The others are recorded as problems."""
    frames = document.get("frames")
    if not isinstance(frames, list) or not frames:
        what = "has no `frames`." if frames is None else "has `frames` that is not a list with entries."
        parsed.error(source, what, "Each frame needs a `file_path` and a `transform_matrix`.", "json")
        return []
    kept = []
    for i, entry in enumerate(frames):
        if isinstance(entry, dict):
            kept.append(entry)
        else:
            what = f"frames[{i}] is not an object."
            parsed.error(source, what, "Each frame needs a `file_path` and a `transform_matrix`.", "json")
    return kept


def read_pose(entry: dict[str, Any], where: str, parsed: Parsed) -> np.ndarray | None:
    """`transform_matrix` as [3, 4] float64; None if it is not a matrix. The pose check reports non-finite numbers."""
    value = entry.get("transform_matrix")
    fix = "`transform_matrix` is a 4x4 (or 3x4) camera-to-world matrix of numbers."
    if value is None:
        parsed.error(where, "has no `transform_matrix`.", fix, "pose")
        return None
    rows = value if isinstance(value, list) else [value]
    numbers = [x for row in rows for x in (row if isinstance(row, list) else [row])]
    lengths = {len(row) if isinstance(row, list) else 0 for row in rows}
    if len(lengths) != 1 or any(isinstance(x, bool) or not isinstance(x, int | float | None) for x in numbers):
        parsed.error(where, "has a `transform_matrix` that is not a matrix of numbers.", fix, "pose")
        return None
    # JSON cannot represent NaN, and some writers use null instead.
    matrix = np.array([math.nan if x is None else float(x) for x in numbers]).reshape(len(rows), -1)
    if matrix.shape not in ((4, 4), (3, 4)):
        parsed.error(where, f"has a `transform_matrix` of shape {list(matrix.shape)}.", fix, "pose")
        return None
    return matrix[:3]


def read_number(entry: dict[str, Any], key: str, where: str, parsed: Parsed) -> float | None:
    """The number under a key; None if the key is missing. Records a problem if the value is not a number."""
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        parsed.error(where, f"has `{key}` = {value!r}, which is not a number.", f"Make `{key}` a number.", "json")
        return None
    return float(value)


def read_aabb_scale(document: dict[str, Any], source: str, parsed: Parsed) -> float | None:
    """instant-ngp's hint at the size of the scene. If it is out of range, records a warning and returns None."""
    scale = read_number(document, "aabb_scale", source, parsed)
    if scale is not None and not 1 <= scale <= 2**20:
        what = f"has `aabb_scale` = {scale:g}; it is ignored."
        parsed.warn(source, what, "`aabb_scale` is a power of two, 1 to 128.", "bounds")
        return None
    return scale


def read_depth_unit(document: dict[str, Any], source: str, parsed: Parsed) -> float:
    """Units of the scene per number in a depth map: nerfstudio's default is millimetres. A bad value is a warning."""
    unit = read_number(document, "depth_unit_scale_factor", source, parsed)
    if unit is not None and not 0 < unit < math.inf:
        what = f"has `depth_unit_scale_factor` = {unit:g}; {parsed.depth_unit:g} is used."
        parsed.warn(source, what, "It is the length of one unit of the depth maps, such as 0.001.", "depth")
        return parsed.depth_unit
    return parsed.depth_unit if unit is None else unit


def has_intrinsics(entry: dict[str, Any]) -> bool:
    """Whether a frame has its own camera."""
    return any(key in entry for key in _INTRINSIC_KEYS + _LENS_KEYS)


def read_intrinsics(entry: dict[str, Any], where: str, parsed: Parsed) -> Intrinsics:
    """The camera of a file or a frame, from the keys that instant-ngp and nerfstudio share."""
    number = {key: read_number(entry, key, where, parsed) for key in (*_INTRINSIC_KEYS[:-1], *_LENS_KEYS[1:])}
    if all(number[k] is None for k in ("fl_x", "fl_y", "camera_angle_x", "camera_angle_y")):
        what = "states no focal length: none of `fl_x`, `fl_y`, `camera_angle_x`, `camera_angle_y`."
        parsed.error(where, what, "Add `camera_angle_x` (radians) or `fl_x` (pixels).", "intrinsics")
    size: dict[str, int | None] = {"w": None, "h": None}
    for key in size:
        value = number[key]
        if value is None:
            continue
        if 1 <= value <= MOST_PIXELS:
            size[key] = round(value)
        else:
            parsed.error(where, f"has `{key}` = {value:g}.", f"`{key}` is the image size in pixels.", "intrinsics")
    model, distortion = _read_lens(entry, number, where, parsed)
    return Intrinsics(
        width=size["w"],
        height=size["h"],
        fx=number["fl_x"],
        fy=number["fl_y"],
        cx=number["cx"],
        cy=number["cy"],
        angle_x=number["camera_angle_x"],
        angle_y=number["camera_angle_y"],
        model=model,
        distortion=distortion,
    )


def _read_lens(
    entry: dict[str, Any], number: dict[str, float | None], where: str, parsed: Parsed
) -> tuple[CameraModel, tuple[float, ...]]:
    """Camera model and distortion coefficients. A perspective model with zero coefficients is a pinhole."""
    k1, k2, k3, k4, p1, p2 = (number[k] or 0.0 for k in ("k1", "k2", "k3", "k4", "p1", "p2"))
    name = str(entry.get("camera_model", "OPENCV_FISHEYE" if entry.get("is_fisheye") else "OPENCV"))
    if name.upper() in _FISHEYE_NAMES or entry.get("is_fisheye"):
        return "fisheye", (k1, k2, k3, k4)
    if name.upper() not in _OPENCV_NAMES:
        known = ", ".join(sorted(_OPENCV_NAMES | _FISHEYE_NAMES))
        parsed.error(where, f"has the unknown camera model {name!r}.", f"Known models: {known}.", "camera-model")
        return "pinhole", ()
    if name.upper().endswith("PINHOLE"):
        return "pinhole", ()
    if k4:
        what = f"has k4 = {k4:g} with the model {name}, which stops at k3."
        parsed.error(where, what, "Refit the camera without k4, or undistort the images.", "camera-model")
    distortion = (k1, k2, p1, p2, k3)
    return ("opencv", distortion) if any(distortion) else ("pinhole", ())

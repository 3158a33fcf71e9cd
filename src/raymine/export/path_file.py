"""Camera paths in a JSON file: read in either of two forms that other tools write, and written in the first.

1. Like transforms.json: `"frames": [{"transform_matrix": 4x4 rows, "time": 0..1}, ...]`, with the view from
   `camera_angle_x` (radians) or `fl_x`, `fl_y`, `w`, `h` beside it. The frames are rendered as they stand.
2. Like nerfstudio's camera_path.json: `"camera_path": [{"camera_to_world": 16 numbers, rows first, "fov": vertical
   degrees}, ...]` with `render_width` and `render_height`; rendered as they stand. Or `"keyframes"` of the same form
   (`matrix` is accepted for `camera_to_world`), which a smooth curve joins; `"is_cycle": true` closes it.

Poses are camera-to-world with x right, y up, z backward, in the coordinates of the scene's own files; raymine's
normalisation is applied to them. With `"world": "raymine"` they are in normalised coordinates already. If the file does
not state the field of view or the size, those of the scene's first camera are used. If a number of frames is asked for,
a smooth curve joins the poses of any form.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raymine.cameras import from_normalised, pose_fault, to_normalised
from raymine.contracts import Camera, Scene
from raymine.errors import ConfigError
from raymine.files import JSON, UnreadableFile, read_json, write_json

from .curves import interpolate_poses, interpolate_values
from .paths import CameraPath, novel_camera, with_fov

KEYFRAME_VIEWS = 120
_FORMS = {
    "frames": ("transform_matrix",),
    "camera_path": ("camera_to_world",),
    "keyframes": ("camera_to_world", "matrix"),
}


@dataclass(frozen=True)
class _Key:
    """One entry of a path file; fov is vertical, in degrees."""

    pose: np.ndarray
    fov: float | None
    time: float | None


def from_file(path: Path, scene: Scene, *, n: int | None = None, size: tuple[int, int] | None = None) -> CameraPath:
    """Read a path file (see the module docstring) -> `CameraPath` of n views, or of the file's own number if n is None.

    Keyframes without n give 120 views. `size` (width, height) in pixels overrides that of the file. `ConfigError` names
    a wrong entry and its fault.
    """
    document = _read(path)
    form = next((name for name in _FORMS if document.get(name)), None)
    if form is None:
        raise ConfigError(
            f"{path} is not a camera path: it has none of the lists `frames`, `camera_path`, `keyframes`.",
            hint="Write a list `frames` whose entries have a 4x4 `transform_matrix`, as in transforms.json.",
        )
    entries = document[form]
    if not isinstance(entries, list):
        raise ConfigError(f"{path}: `{form}` must be a list, got {type(entries).__name__}.")
    keys = [_key(entry, f"{path}: {form}[{i}]", _FORMS[form]) for i, entry in enumerate(entries)]
    poses = np.stack([key.pose for key in keys])
    if document.get("world") != "raymine":
        poses = to_normalised(scene, poses)
    camera = _camera(document, scene, size, path)
    count = n if n is not None else KEYFRAME_VIEWS if form == "keyframes" else len(keys)
    if n is None and form != "keyframes":
        return CameraPath(poses, _with_fov(camera, _fovs(keys, camera)), _times(keys, scene, f"{path}: {form}"))
    closed = bool(document.get("is_cycle", False))
    fovs = interpolate_values(_fovs(keys, camera), count, closed=closed)
    key_times = _times(keys, scene, f"{path}: {form}")
    times = None if key_times is None else interpolate_values(key_times, count, closed=closed)
    return CameraPath(interpolate_poses(poses, count, closed=closed), _with_fov(camera, fovs), times)


def to_file(camera_path: CameraPath, scene: Scene, path: Path) -> None:
    """Write a camera path as a file that `from_file` reads back: the first form, in the scene's own coordinates."""
    first = camera_path.cameras[0]
    rows = np.zeros((len(camera_path), 4, 4))
    rows[:, :3], rows[:, 3, 3] = from_normalised(scene, camera_path.poses), 1.0
    frames: list[JSON] = []
    for i, camera in enumerate(camera_path.cameras):
        entry: dict[str, JSON] = {"transform_matrix": rows[i].tolist()}
        if camera != first:
            entry["fov"] = _fov(camera)
        if camera_path.times is not None:
            entry["time"] = float(camera_path.times[i])
        frames.append(entry)
    document: dict[str, JSON] = {"w": first.width, "h": first.height, "fl_x": first.fx, "fl_y": first.fy}
    write_json(path, {**document, "frames": frames}, "write the camera path")


def _read(path: Path) -> dict[str, Any]:
    if not os.path.lexists(path):
        raise ConfigError(
            f"No camera path file {path}.", hint="Give `orbit`, `spiral`, `still` or the name of a JSON file."
        )
    try:
        document = read_json(path)
    except UnreadableFile as error:
        raise ConfigError(f"The camera path file {path} {error.what}", hint="Write the file again.") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} must hold a JSON object, got {type(document).__name__}.")
    return document


def _key(entry: Any, where: str, names: tuple[str, ...]) -> _Key:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} must be an object, got {type(entry).__name__}.")
    name = next((n for n in names if n in entry), None)
    if name is None:
        raise ConfigError(f"{where} has no `{names[0]}`.")
    return _Key(_pose(entry[name], f"{where}.{name}"), _number(entry, "fov", where), _number(entry, "time", where))


def _pose(value: Any, where: str) -> np.ndarray:
    """16 numbers, or nested rows of 3x4 or 4x4 -> [3, 4]; `ConfigError` if it is not a rotation and a position."""
    try:
        matrix = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{where} must hold 16 numbers (4x4, rows first).") from None
    if matrix.size not in (12, 16):
        raise ConfigError(f"{where} must hold 16 numbers (4x4, rows first), got {matrix.size}.")
    pose = matrix.reshape(-1, 4)[:3]
    fault = pose_fault(pose)
    if fault is not None:
        raise ConfigError(
            f"{where} {fault}.",
            hint="A pose is a rotation and a position, rows first: right, up, back and position are its COLUMNS.",
        )
    return pose


def _number(entry: dict[str, Any], name: str, where: str) -> float | None:
    value = entry.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{where}: `{name}` must be a finite number, got {value!r}.")
    if name == "fov" and not 1.0 <= value <= 170.0:
        raise ConfigError(f"{where}: `fov` is the vertical view in degrees, 1 to 170; got {value}.")
    return float(value)


def _camera(document: dict[str, Any], scene: Scene, size: tuple[int, int] | None, path: Path) -> Camera:
    """The field of view and size of the file; what it does not state comes from the scene's first camera."""
    base = scene.cameras[scene.frames[0].camera]
    where = str(path)
    width = _number(document, "render_width", where) or _number(document, "w", where)
    height = _number(document, "render_height", where) or _number(document, "h", where)
    if (width is not None and width < 1) or (height is not None and height < 1):
        raise ConfigError(f"{path}: the picture must be at least 1x1 pixels, got {width} x {height}.")
    if width and height:
        base = novel_camera(base, (int(width), int(height)))
    angle, focal = _number(document, "camera_angle_x", where), _number(document, "fl_x", where)
    if focal is None and angle is not None and 0.0 < angle < math.pi:
        focal = 0.5 * base.width / math.tan(0.5 * angle)
    if focal is not None and focal > 0.0:
        focal_y = _number(document, "fl_y", where) or focal
        base = Camera(base.width, base.height, focal, focal_y, base.width / 2, base.height / 2)
    return novel_camera(base, size)


def _fovs(keys: list[_Key], camera: Camera) -> np.ndarray:
    return np.array([_fov(camera) if key.fov is None else key.fov for key in keys])


def _fov(camera: Camera) -> float:
    """The vertical field of view in degrees."""
    return math.degrees(2.0 * math.atan(0.5 * camera.height / camera.fy))


def _with_fov(camera: Camera, fovs: np.ndarray) -> tuple[Camera, ...]:
    """One camera per vertical field of view in degrees."""
    return tuple(with_fov(camera, float(fov)) for fov in fovs)


def _times(keys: list[_Key], scene: Scene, where: str) -> np.ndarray | None:
    """Times [n] of a dynamic scene: those of the file if every entry has one, else evenly from 0 to 1."""
    if not scene.dynamic:
        return None
    for i, key in enumerate(keys):
        if key.time is not None and not 0.0 <= key.time <= 1.0:
            raise ConfigError(
                f"{where}[{i}]: `time` must be in 0..1, got {key.time:g}: 0 is the first moment, 1 the last."
            )
    stated = [key.time for key in keys if key.time is not None]
    if len(stated) == len(keys):
        return np.array(stated)
    return np.linspace(0.0, 1.0, len(keys))

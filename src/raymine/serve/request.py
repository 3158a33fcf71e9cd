"""The JSON of a request -> a view to render. Every mistake is a `ConfigError` that names the field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from raymine._arguments import colour, number, numbers, pose_matrix, whole
from raymine.cameras import from_normalised, look_at, to_normalised
from raymine.cameras.poses import FARTHEST
from raymine.contracts import Camera, Scene
from raymine.errors import ConfigError, did_you_mean
from raymine.export import novel_camera, with_fov

Format = Literal["png", "jpeg"]
Kind = Literal["colour", "depth", "opacity"]
World = Literal["scene", "raymine"]

FIELDS = (
    "pose", "position", "target", "up", "world", "width", "height", "fov", "focal", "format", "quality", "kind",
    "time", "background",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ViewRequest:
    """A view to render: camera, pose [3, 4] in the normalised world, and how its picture is encoded."""

    camera: Camera
    pose: np.ndarray
    background: tuple[float, float, float]
    time: float | None = None
    format: Format = "png"
    quality: int = 90
    kind: Kind = "colour"


def parse_request(body: Any, scene: Scene, most_pixels: int) -> ViewRequest:
    """A request for a view of `scene`. Fields that are missing are those of the scene's first camera."""
    if not isinstance(body, dict):
        raise ConfigError(f"The request must be a JSON object, got {type(body).__name__}.")
    for name in body:
        if name not in FIELDS:
            meant = did_you_mean(str(name), FIELDS)
            raise ConfigError(f"There is no field `{str(name)[:40]}`.{meant}", hint=f"Fields: {', '.join(FIELDS)}.")
    world = _choice(body, "world", get_args(World))
    given = body.get("time")
    time = None if given is None else number(given, "time")
    if time is not None and not 0 <= time <= 1:
        raise ConfigError(f"`time` must be in 0..1, got {time}.")
    if time is None and scene.dynamic:
        time = 0.0
    quality = whole(body["quality"], "quality") if body.get("quality") is not None else 90
    if not 1 <= quality <= 100:
        raise ConfigError(f"`quality` must be between 1 and 100, got {quality}.")
    background = body.get("background")
    return ViewRequest(
        _camera(body, scene, most_pixels),
        _pose(body, scene, world == "raymine"),
        (scene.background or (0.0, 0.0, 0.0)) if background is None else colour(background),
        time,
        _choice(body, "format", get_args(Format)),
        quality,
        _choice(body, "kind", get_args(Kind)),
    )


def _choice(body: dict[str, Any], name: str, choices: tuple[str, ...]) -> Any:
    value = body.get(name)
    if value is None:
        return choices[0]
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"`{name}` must be one of {', '.join(choices)}, got {str(value)[:40]!r}.")
    return value


def _pose(body: dict[str, Any], scene: Scene, normalised: bool) -> np.ndarray:
    if body.get("pose") is not None:
        if any(body.get(name) is not None for name in ("position", "target", "up")):
            raise ConfigError("Give either `pose`, or `position` and `target`, not both.")
        pose = pose_matrix(_plain(body["pose"], "pose"), "pose")
    else:
        if body.get("position") is None or body.get("target") is None:
            raise ConfigError(
                "The request does not say where the camera stands.", hint="Give `pose`, or `position` and `target`."
            )
        sky = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
        sky = sky if normalised else from_normalised(scene, sky)
        up = sky[0] - sky[1] if body.get("up") is None else _vector(body, "up")
        pose = look_at(_vector(body, "position"), _vector(body, "target"), up)
    pose = pose if normalised else to_normalised(scene, pose)
    if not np.isfinite(pose).all() or np.abs(pose[:, 3]).max() > FARTHEST:
        raise ConfigError("The camera is beyond any scene.", hint="Positions are in the units of the scene's files.")
    return pose


def _plain(value: Any, name: str) -> Any:
    """Nested lists of numbers. NumPy would also take texts and truth values for numbers."""
    rows = value if isinstance(value, list) else None
    flat = [each for row in rows or [] for each in (row if isinstance(row, list) else [row])]
    if rows is None or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in flat):
        raise ConfigError(f"`{name}` must be a list of rows of numbers, 3x4 or 4x4.")
    return value


def _vector(body: dict[str, Any], name: str) -> np.ndarray:
    value = body[name]
    if not isinstance(value, list) or len(value) != 3:
        raise ConfigError(f"`{name}` must be a list of three numbers.")
    found = numbers([number(each, name) for each in value], name)
    if np.abs(found).max() > FARTHEST:
        raise ConfigError(f"`{name}` is beyond any scene.")
    return found


def _camera(body: dict[str, Any], scene: Scene, most_pixels: int) -> Camera:
    base = scene.cameras[scene.frames[0].camera]
    width = base.width if body.get("width") is None else whole(body["width"], "width")
    height = base.height if body.get("height") is None else whole(body["height"], "height")
    if width < 1 or height < 1:
        raise ConfigError(f"A picture must be at least 1x1 pixels, got {str(width)[:20]}x{str(height)[:20]}.")
    if width * height > most_pixels:
        raise ConfigError(
            f"A picture may have up to {most_pixels} pixels; {width:.7g}x{height:.7g} is too large.",
            hint="Give a smaller `width` and `height`.",
        )
    camera = novel_camera(base, (width, height))
    fov, focal = body.get("fov"), body.get("focal")
    if fov is not None and focal is not None:
        raise ConfigError("Give either `fov` or `focal`, not both.")
    if fov is not None:
        degrees = number(fov, "fov")
        if not 1 <= degrees <= 170:
            raise ConfigError(f"`fov` is the vertical field of view in degrees, 1 to 170; got {degrees:g}.")
        return with_fov(camera, degrees)
    if focal is not None:
        length = number(focal, "focal")
        if not 1e-3 * height <= length <= 1e4 * height:
            raise ConfigError(f"`focal` is in pixels, {1e-3 * height:g} to {1e4 * height:g} here; got {length:g}.")
        return Camera(width, height, length, length, width / 2, height / 2)
    return camera

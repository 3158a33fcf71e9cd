"""Reads COLMAP's files, binary and text: cameras, images and points.

Only camera models are converted here, because the parameters of a model are part of the file format. Damaged files
raise `ModelFileError`, which says where.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from raymine.files import UnreadableFile, read_file
from raymine.scenes.parsed import Intrinsics

# Identifier in binary files, and number of parameters.
_MODELS = {
    "SIMPLE_PINHOLE": (0, 3),
    "PINHOLE": (1, 4),
    "SIMPLE_RADIAL": (2, 4),
    "RADIAL": (3, 5),
    "OPENCV": (4, 8),
    "OPENCV_FISHEYE": (5, 8),
    "FULL_OPENCV": (6, 12),
    "FOV": (7, 5),
    "SIMPLE_RADIAL_FISHEYE": (8, 4),
    "RADIAL_FISHEYE": (9, 5),
    "THIN_PRISM_FISHEYE": (10, 12),
    "RAD_TAN_THIN_PRISM_FISHEYE": (11, 16),
}
_NAMES = {number: name for name, (number, _) in _MODELS.items()}
_ONE_FOCAL = {"SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE"}
SUPPORTED = (
    "SIMPLE_PINHOLE, PINHOLE, SIMPLE_RADIAL, RADIAL, OPENCV, OPENCV_FISHEYE, SIMPLE_RADIAL_FISHEYE, RADIAL_FISHEYE"
)
_OBSERVATION = np.dtype([("xy", "<f8", 2), ("point", "<i8")])


class ModelFileError(Exception):
    """A model file that is cut short or has the wrong content. The message is meant to follow the file name."""


class UnknownModelError(Exception):
    """A camera model that raymine does not know. The message is its name."""


@dataclass(frozen=True)
class ModelCamera:
    """One line of cameras.txt."""

    model: str
    width: int
    height: int
    parameters: tuple[float, ...]

    def intrinsics(self) -> Intrinsics | None:
        """As `Intrinsics`; None for a camera model that raymine does not support."""
        p = self.parameters
        if self.model not in _MODELS or len(p) != _MODELS[self.model][1]:
            return None
        fx, fy, cx, cy = (p[0], p[0], p[1], p[2]) if self.model in _ONE_FOCAL else p[:4]
        k = p[3:] if self.model in _ONE_FOCAL else p[4:]
        common = Intrinsics(self.width, self.height, fx, fy, cx, cy)
        return _with_lens(common, self.model, k)


def _with_lens(camera: Intrinsics, model: str, k: tuple[float, ...]) -> Intrinsics | None:
    """The camera with its lens distortion; a perspective lens with zero coefficients stays a pinhole."""
    if model in ("OPENCV_FISHEYE", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE"):
        return replace(camera, model="fisheye", distortion=(*k, 0.0, 0.0, 0.0)[:4])
    if model in ("SIMPLE_RADIAL", "RADIAL"):
        distortion = (*k, 0.0, 0.0, 0.0, 0.0)[:5]
    elif model == "OPENCV":
        distortion = (*k, 0.0)
    elif model == "FULL_OPENCV" and not any(k[5:]):
        distortion = k[:5]
    elif model.endswith("PINHOLE"):
        return camera
    else:
        return None
    return replace(camera, model="opencv", distortion=distortion) if any(distortion) else camera


@dataclass(frozen=True)
class ModelImage:
    """One image: world-to-camera quaternion (w, x, y, z) and translation; ids of the points of its features, or -1."""

    name: str
    camera: int
    quaternion: np.ndarray
    translation: np.ndarray
    points: np.ndarray


@dataclass(frozen=True)
class ModelPoints:
    """ids [n] int64 and positions [n, 3] of the scene points."""

    ids: np.ndarray
    positions: np.ndarray


def _content(path: Path) -> bytes:
    try:
        return read_file(path)
    except UnreadableFile as error:
        raise ModelFileError(error.what) from error


class _Bytes:
    """A binary file that is read from front to back."""

    def __init__(self, path: Path) -> None:
        self.data = _content(path)
        self.at = 0

    def take(self, layout: str) -> tuple:
        try:
            values = struct.unpack_from("<" + layout, self.data, self.at)
        except struct.error:
            raise ModelFileError(f"is cut short: it ends at byte {len(self.data)}.") from None
        self.at += struct.calcsize("<" + layout)
        return values

    def skip(self, count: int) -> int:
        start = self.at
        if start + count > len(self.data):
            raise ModelFileError(f"is cut short: it ends at byte {len(self.data)}.")
        self.at += count
        return start

    def word(self) -> str:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise ModelFileError(f"is cut short: it ends at byte {len(self.data)}.")
        word = self.data[self.at : end].decode("utf-8", errors="replace")
        self.at = end + 1
        return word


def read_cameras(path: Path) -> dict[int, ModelCamera]:
    """cameras.bin or cameras.txt, by camera id."""
    return _text_cameras(path) if path.suffix == ".txt" else _binary_cameras(path)


def read_images(path: Path) -> list[ModelImage]:
    """images.bin or images.txt, in the order of image names."""
    images = _text_images(path) if path.suffix == ".txt" else _binary_images(path)
    return sorted(images, key=lambda image: image.name)


def read_points(path: Path) -> ModelPoints:
    """points3D.bin or points3D.txt."""
    rows = list(_text_points(path) if path.suffix == ".txt" else _binary_points(path))
    bad = next((number for number, *_ in rows if not 0 <= number < 2**63), None)
    if bad is not None:
        raise ModelFileError(f"has a point with the id {bad:.10g}, which no model has.")
    ids = np.array([number for number, *_ in rows], dtype=np.int64)
    return ModelPoints(ids, np.array([position for _, *position in rows], dtype=np.float64).reshape(-1, 3))


def _binary_cameras(path: Path) -> dict[int, ModelCamera]:
    file = _Bytes(path)
    cameras = {}
    for _ in range(file.take("Q")[0]):
        number, model, width, height = file.take("IiQQ")
        if model not in _NAMES:
            # Its number of parameters is unknown, so the rest of the file cannot be read either.
            raise UnknownModelError(f"number {model}")
        name = _NAMES[model]
        cameras[number] = ModelCamera(name, width, height, file.take(f"{_MODELS[name][1]}d"))
    return cameras


def _binary_images(path: Path) -> Iterator[ModelImage]:
    file = _Bytes(path)
    for _ in range(file.take("Q")[0]):
        values = file.take("I7dI")
        name = file.word()
        count = file.take("Q")[0]
        start = file.skip(count * _OBSERVATION.itemsize)
        seen = np.frombuffer(file.data, _OBSERVATION, count, start)["point"]
        yield ModelImage(name, values[8], np.array(values[1:5]), np.array(values[5:8]), seen)


def _binary_points(path: Path) -> Iterator[tuple[int, float, float, float]]:
    file = _Bytes(path)
    for _ in range(file.take("Q")[0]):
        number, x, y, z, *_, track = file.take("Q3d3BdQ")
        file.skip(8 * track)
        yield number, x, y, z


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and lines without comments. Empty lines are kept: an image without points has one."""
    text = _content(path).decode("utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.startswith("#"):
            yield number, line.strip()


def _text_cameras(path: Path) -> dict[int, ModelCamera]:
    cameras = {}
    for number, line in _lines(path):
        words = line.split()
        if not words:
            continue
        try:
            camera, model, width, height, *parameters = words
            cameras[int(camera)] = ModelCamera(model, int(width), int(height), tuple(map(float, parameters)))
        except ValueError:
            raise ModelFileError(f"line {number} is not a camera: {line[:60]!r}.") from None
    return cameras


def _text_images(path: Path) -> Iterator[ModelImage]:
    lines = _lines(path)
    for number, line in lines:
        if not line:
            continue
        words = line.split(maxsplit=9)
        try:
            values = [float(w) for w in words[1:8]]
            camera, name = int(words[8]), words[9]
        except (ValueError, IndexError):
            raise ModelFileError(f"line {number} is not an image: {line[:60]!r}.") from None
        _, observations = next(lines, (0, ""))
        try:
            seen = np.array([int(w) for w in observations.split()[2::3]], dtype=np.int64)
        except (ValueError, OverflowError):
            raise ModelFileError(f"line {number + 1} is not a list of points.") from None
        yield ModelImage(name, camera, np.array(values[:4]), np.array(values[4:]), seen)


def _text_points(path: Path) -> Iterator[tuple[int, float, float, float]]:
    for number, line in _lines(path):
        if not line:
            continue
        try:
            point, x, y, z = line.split(maxsplit=4)[:4]
            yield int(point), float(x), float(y), float(z)
        except ValueError:
            raise ModelFileError(f"line {number} is not a point: {line[:60]!r}.") from None

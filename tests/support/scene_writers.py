"""One synthetic capture, written in the conventions of every format that raymine reads.

The ground truth is kept in OpenCV's convention (world-to-camera rotation and translation) and projected by its own
formula, so that a reader agrees with it only if it converts the convention correctly.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


@dataclass
class Capture:
    """World-to-camera rotations [n, 3, 3] and translations [n, 3], x right, y down, z forward; one pinhole camera."""

    rotations: np.ndarray
    translations: np.ndarray
    width: int = 48
    height: int = 32
    focal: float = 40.0
    names: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rotations)

    def pixels(self, frame: int, points: np.ndarray) -> np.ndarray:
        """Points [n, 3] of the capture's own world -> pixels [n, 2]."""
        local = points @ self.rotations[frame].T + self.translations[frame]
        return self.focal * local[:, :2] / local[:, 2:] + [self.width / 2, self.height / 2]

    def camera_to_world(self, frame: int) -> np.ndarray:
        """[4, 4], still with y down and z forward."""
        matrix = np.eye(4)
        matrix[:3, :3] = self.rotations[frame].T
        matrix[:3, 3] = -self.rotations[frame].T @ self.translations[frame]
        return matrix

    def opengl(self, frame: int) -> list[list[float]]:
        """[4, 4] as Blender and instant-ngp write it: y up and z backward."""
        return (self.camera_to_world(frame) @ np.diag([1.0, -1.0, -1.0, 1.0])).tolist()


def ring(count: int = 9, centre: tuple[float, float, float] = (2.0, -1.0, 5.0), radius: float = 3.0) -> Capture:
    """Cameras around a centre, a little above it, looking at it, in a world whose y points down."""
    rotations, translations = [], []
    for i in range(count):
        angle = 2 * np.pi * i / count
        offset = radius * np.array([np.cos(angle), -0.4 + 0.05 * i, np.sin(angle)])
        forward = -offset / np.linalg.norm(offset)
        right = np.cross([0.0, 1.0, 0.0], forward)
        right /= np.linalg.norm(right)
        rotation = np.stack([right, np.cross(forward, right), forward])
        rotations.append(rotation)
        translations.append(-rotation @ (np.array(centre) + offset))
    names = [f"photo_{i:02d}.png" for i in range(count)]
    return Capture(np.array(rotations), np.array(translations), names=names)


def points_near(centre: tuple[float, float, float] = (2.0, -1.0, 5.0), count: int = 20) -> np.ndarray:
    return np.array(centre) + np.random.default_rng(7).uniform(-0.5, 0.5, (count, 3))


def write_image(path: Path, size: tuple[int, int], seed: int = 0, alpha: bool = False, orientation: int = 1) -> None:
    """A noisy image, different for every seed; with `alpha`, its left half is transparent."""
    width, height = size
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 4 if alpha else 3), dtype=np.uint8)
    if alpha:
        pixels[:, : width // 2, 3] = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if orientation != 1:
        exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, exif=exif)


def write_images(capture: Capture, folder: Path, size: tuple[int, int] | None = None) -> None:
    for i, name in enumerate(capture.names):
        write_image(folder / name, size or (capture.width, capture.height), i)


def frames_of(capture: Capture, folder: str = "images") -> list[dict[str, Any]]:
    return [
        {"file_path": f"{folder}/{name}", "transform_matrix": capture.opengl(i)} for i, name in enumerate(capture.names)
    ]


def write_json(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def transforms_of(capture: Capture) -> dict[str, Any]:
    return {
        "w": capture.width,
        "h": capture.height,
        "fl_x": capture.focal,
        "fl_y": capture.focal,
        "cx": capture.width / 2,
        "cy": capture.height / 2,
        "frames": frames_of(capture),
    }


def write_transforms(capture: Capture, root: Path, **changes: Any) -> Path:
    write_images(capture, root / "images")
    write_json(root / "transforms.json", {**transforms_of(capture), **changes})
    return root


def write_blender(capture: Capture, root: Path) -> Path:
    """Two thirds train, the rest test; names without extension; transparent PNGs."""
    angle = 2 * np.arctan(capture.width / (2 * capture.focal))
    for split, part in (("train", [i for i in range(len(capture)) if i % 3]), ("test", range(0, len(capture), 3))):
        frames = []
        for i in part:
            write_image(root / split / f"r_{i}.png", (capture.width, capture.height), i, alpha=True)
            frames.append({"file_path": f"./{split}/r_{i}", "transform_matrix": capture.opengl(i)})
        write_json(root / f"transforms_{split}.json", {"camera_angle_x": angle, "frames": frames})
    return root


def write_llff(capture: Capture, root: Path, bounds: tuple[float, float] = (2.0, 6.0), full: int = 1) -> Path:
    """Columns [down, right, back]; `full` is how much larger the stated camera is than the images."""
    write_images(capture, root / "images")
    rows = []
    for i in range(len(capture)):
        pose = capture.camera_to_world(i)[:3]
        hwf = np.array([capture.height, capture.width, capture.focal]) * full
        matrix = np.stack([pose[:, 1], pose[:, 0], -pose[:, 2], pose[:, 3], hwf], axis=1)
        rows.append(np.concatenate([matrix.reshape(-1), np.array(bounds) + 0.01 * i]))
    np.save(root / "poses_bounds.npy", np.array(rows))
    return root


def quaternion(rotation: np.ndarray) -> np.ndarray:
    """(w, x, y, z) by the trace formula, which is enough away from half turns."""
    w = np.sqrt(max(0.0, 1 + np.trace(rotation))) / 2
    if w < 1e-3:
        values, vectors = np.linalg.eig(rotation)
        axis = np.real(vectors[:, np.argmin(np.abs(values - 1))])
        return np.array([0.0, *axis])
    skew = np.array([rotation[2, 1] - rotation[1, 2], rotation[0, 2] - rotation[2, 0], rotation[1, 0] - rotation[0, 1]])
    return np.array([w, *(skew / (4 * w))])


def write_colmap(
    capture: Capture,
    root: Path,
    *,
    binary: bool = True,
    model: tuple[str, int, list[float]] | None = None,
    points: np.ndarray | None = None,
) -> Path:
    """sparse/0 with one camera; `model` is its name, number and parameters; every image sees every point."""
    write_images(capture, root / "images")
    folder = root / "sparse/0"
    folder.mkdir(parents=True)
    name, number, parameters = model or ("SIMPLE_PINHOLE", 0, [capture.focal, capture.width / 2, capture.height / 2])
    points = np.zeros((0, 3)) if points is None else points
    (_write_binary if binary else _write_text)(capture, folder, (name, number, parameters), points)
    return root


def _write_binary(capture: Capture, folder: Path, model: tuple[str, int, list[float]], points: np.ndarray) -> None:
    _, number, parameters = model
    camera = struct.pack("<IiQQ", 3, number, capture.width, capture.height)
    (folder / "cameras.bin").write_bytes(
        struct.pack("<Q", 1) + camera + struct.pack(f"<{len(parameters)}d", *parameters)
    )
    data = struct.pack("<Q", len(capture))
    for i in reversed(range(len(capture))):
        data += struct.pack("<I7dI", i + 1, *quaternion(capture.rotations[i]), *capture.translations[i], 3)
        data += capture.names[i].encode() + b"\0" + struct.pack("<Q", len(points) + 1)
        data += struct.pack("<ddq", 1.0, 1.0, -1)
        for j, (x, y) in enumerate(capture.pixels(i, points)):
            data += struct.pack("<ddq", x, y, 100 + j)
    (folder / "images.bin").write_bytes(data)
    data = struct.pack("<Q", len(points))
    for j, point in enumerate(points):
        data += struct.pack("<Q3d3BdQ", 100 + j, *point, 1, 2, 3, 0.5, 2) + struct.pack("<4I", 1, j + 1, 2, j + 1)
    (folder / "points3D.bin").write_bytes(data)


def _write_text(capture: Capture, folder: Path, model: tuple[str, int, list[float]], points: np.ndarray) -> None:
    name, _, parameters = model
    numbers = " ".join(map(repr, map(float, parameters)))
    (folder / "cameras.txt").write_text(f"# Camera list\n3 {name} {capture.width} {capture.height} {numbers}\n")
    lines = ["# Image list"]
    for i in reversed(range(len(capture))):
        pose = " ".join(repr(float(v)) for v in (*quaternion(capture.rotations[i]), *capture.translations[i]))
        lines.append(f"{i + 1} {pose} 3 {capture.names[i]}")
        seen = [f"{x} {y} {100 + j}" for j, (x, y) in enumerate(capture.pixels(i, points))]
        lines.append(" ".join(seen))
    (folder / "images.txt").write_text("\n".join(lines) + "\n")
    rows = [f"{100 + j} {p[0]} {p[1]} {p[2]} 1 2 3 0.5 1 {j} 2 {j}" for j, p in enumerate(points)]
    (folder / "points3D.txt").write_text("# Points\n" + "\n".join(rows) + "\n")

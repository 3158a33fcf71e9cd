"""Small scenes of noise for the tests of the image bank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from raymine.contracts import Bounds, Camera, Frame, Scene
from raymine.scenes.bank import ImageBank, open_bank


def scene_of(root: Path, files: list[tuple[Path, int, int]], masks: dict[int, Path] | None = None) -> Scene:
    """A scene of one camera per file; each file is (path, width, height)."""
    cameras = tuple(Camera(w, h, 50.0, 50.0, w / 2, h / 2) for _, w, h in files)
    masks = masks or {}
    frames = tuple(Frame(path, i, np.eye(4)[:3], mask=masks.get(i)) for i, (path, _, _) in enumerate(files))
    return Scene(root, "test", cameras, frames, Bounds(), None, np.eye(4))


def noise(seed: int, height: int, width: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def save(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def noise_scene(root: Path) -> Scene:
    """Six 7x5 RGB images, `<i>.png`, the i-th of them `noise(i, 5, 7)`."""
    return scene_of(root, [(save(root / f"{i}.png", noise(i, 5, 7)), 7, 5) for i in range(6)])


def opened(scene: Scene, tmp_path: Path, **options: object) -> ImageBank:
    return open_bank(scene, range(len(scene.frames)), cache_dir=tmp_path / "cache", **options)  # type: ignore[arg-type]


def bank_folder(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "cache" / "banks").iterdir()
    return folder


def packs(tmp_path: Path) -> list[Path]:
    return sorted(bank_folder(tmp_path).glob("pack-*"))

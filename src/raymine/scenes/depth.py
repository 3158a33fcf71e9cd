"""Depth maps of frames, as nerfstudio writes them: `depth_file_path` of a frame in transforms.json.

A file is an image of one channel, mostly 16-bit PNG, or a float array (.npy) [H, W]. Its numbers times
`depth_unit_scale_factor` (of the file, 0.001 if it has none: millimetres) are depths in units of the scene, measured
along the view axis of the camera, not along the ray. 0, NaN and infinity mean that nothing is known about a pixel.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from raymine.contracts import Scene
from raymine.errors import SceneError
from raymine.files import UnreadableFile, file_digest, open_file
from raymine.machine import cores

from . import scratch
from .images import MOST_PIXELS, open_image

DEPTH_MAP = " (depth map)"
"""What follows the name of an image in the name of its depth map."""


def read_depth(path: Path) -> np.ndarray:
    """The numbers [H, W] float32 of a depth map, as stored; `UnreadableFile` if it is none."""
    if path.suffix.lower() == ".npy":
        try:
            with open_file(path) as file:
                found = np.load(file, allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise UnreadableFile(f"cannot be read as a NumPy array: {error}.") from error
    else:
        with open_image(path) as image:
            found = np.asarray(image)
    if not isinstance(found, np.ndarray) or found.ndim != 2 or found.size > MOST_PIXELS or not found.size:
        shape = list(getattr(found, "shape", ()))
        raise UnreadableFile(f"is no depth map of one channel: its shape is {shape}.")
    if found.dtype.kind not in "fiu":
        raise UnreadableFile(f"is no depth map: its numbers are of type {found.dtype}.")
    return found.astype(np.float32)


class DepthMaps:
    """Depths of some frames of a scene in world units, at the size of their images (`step.data.DepthSource`)."""

    def __init__(self, scene: Scene, frames: Sequence[int]) -> None:
        """Reads every depth map. `SceneError` if one cannot be read."""
        chosen = [scene.frames[i] for i in frames]
        sizes = [(scene.cameras[f.camera].height, scene.cameras[f.camera].width) for f in chosen]
        scale = scene.depth_unit * scene.scale
        self._starts = torch.from_numpy(np.concatenate(([0], np.cumsum([h * w for h, w in sizes]))).astype(np.int64))
        self._widths = torch.tensor([w for _, w in sizes], dtype=torch.int64)
        self._values = torch.from_numpy(scratch.zeros((int(self._starts[-1]),), np.float32, "the depth maps"))

        def load(i: int) -> None:
            path = chosen[i].depth
            if path is not None:
                span = slice(int(self._starts[i]), int(self._starts[i + 1]))
                self._values[span] = torch.from_numpy(_fitted(_read(path), sizes[i]).reshape(-1)) * scale

        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(load, range(len(chosen))))

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> Tensor:
        """Pixels [R] on the CPU -> depths [R] along the view axis in world units; 0 where they are not known."""
        return self._values[self._starts[image] + y * self._widths[image] + x]


def depth_digests(scene: Scene, frames: Sequence[int]) -> dict[str, str]:
    """sha256 in hex of the content and the unit of each depth map of these frames; {} if none has one.

    The keys are the names of the images with `DEPTH_MAP`, so that a map that moves to another image is noticed. A file
    that cannot be read counts as empty: only training needs it, and refuses it.
    """
    chosen = [(scene.frames[i].image, depth) for i in frames if (depth := scene.frames[i].depth) is not None]

    def digest(path: Path) -> str:
        try:
            return file_digest(path, f"{scene.depth_unit!r} ".encode())
        except UnreadableFile:
            return ""

    names = [Path(os.path.relpath(image, scene.root)).as_posix() + DEPTH_MAP for image, _ in chosen]
    with ThreadPoolExecutor(cores()) as pool:
        return dict(zip(names, pool.map(digest, [depth for _, depth in chosen]), strict=True))


def depth_digest(digests: Mapping[str, str]) -> str | None:
    """One digest of `depth_digests`; None if there is no depth map."""
    return hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest() if digests else None


def _read(path: Path) -> np.ndarray:
    try:
        return read_depth(path)
    except UnreadableFile as error:
        raise SceneError(f"The depth map {path} {error.what}", hint="Restore it, or train without it.") from error


def _fitted(depth: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The depth map at the size (height, width) of its image: the nearest number, since a mean of two surfaces is
    none. What is not finite or not positive becomes 0."""
    rows, columns = (((np.arange(n) + 0.5) * m / n).astype(int) for n, m in zip(size, depth.shape, strict=True))
    found = depth[rows][:, columns]
    return np.where(np.isfinite(found) & (found > 0), found, 0.0).astype(np.float32)

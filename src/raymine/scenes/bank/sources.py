"""The sources of an image bank: image files and their masks, and how to detect that a file has changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raymine.contracts import Scene
from raymine.errors import ConfigError, option

Stamp = tuple[int, int, int, int]
"""(size in bytes, mtime in ns) of an image, then of its mask (zeros if there is none)."""


@dataclass(frozen=True)
class Source:
    """An image file and its mask, to be packed at width x height pixels. name: used in messages."""

    name: str
    image: Path
    mask: Path | None
    width: int
    height: int

    def stamp(self) -> Stamp:
        """Current size and modification time of the files. OSError if one does not exist."""
        image = self.image.stat()
        if self.mask is None:
            return image.st_size, image.st_mtime_ns, 0, 0
        mask = self.mask.stat()
        return image.st_size, image.st_mtime_ns, mask.st_size, mask.st_mtime_ns

    def digests(self) -> tuple[str, str]:
        """sha256 in hex of the image file and of the mask file ("" if there is none)."""
        return file_digest(self.image), "" if self.mask is None else file_digest(self.mask)


def file_digest(path: Path) -> str:
    """sha256 of a file in hex. It reads the file in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def sources_of(scene: Scene, frames: Sequence[int]) -> tuple[Source, ...]:
    """The sources of `frames` (indices into `scene.frames`), in their order."""
    if len(frames) == 0:
        raise ConfigError(
            f"No frames of the scene {scene.root} were chosen for the image bank.",
            hint="Choose at least one frame; an empty split has none.",
        )
    sources = []
    for index in frames:
        if not 0 <= index < len(scene.frames):
            raise ConfigError(
                f"Frame {index} does not exist: the scene {scene.root} has {len(scene.frames)} frames.",
                hint="Choose frames from 0 up to that number, for instance with `scene.of_split`.",
            )
        frame = scene.frames[index]
        camera = scene.cameras[frame.camera]
        if camera.width < 1 or camera.height < 1:
            raise ConfigError(
                f"The camera of {frame.image} must be at least 1x1 pixels, got {camera.width}x{camera.height}.",
                hint=f"Correct the size in the scene's camera file, or use a smaller {option('downscale')}.",
            )
        name = os.path.relpath(frame.image, scene.root) if frame.image.is_relative_to(scene.root) else str(frame.image)
        sources.append(Source(name, frame.image, frame.mask, camera.width, camera.height))
    return tuple(sources)


def selection_key(sources: Sequence[Source]) -> str:
    """A key of a selection: equal for the same files at the same sizes in the same order."""
    parts = [
        [os.path.abspath(s.image), "" if s.mask is None else os.path.abspath(s.mask), s.width, s.height]
        for s in sources
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]

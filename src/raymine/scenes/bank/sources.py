"""What a bank is made from: image files, their masks, and how to see whether a file has changed."""

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
"""(bytes, mtime in ns) of an image, then of its mask (zeros where there is none)."""


@dataclass(frozen=True)
class Source:
    """An image file and its mask, to be packed at `width` x `height` pixels. `name` is what a message calls it."""

    name: str
    image: Path
    mask: Path | None
    width: int
    height: int

    def stamp(self) -> Stamp:
        """Size and time of the files as they are now; OSError when one cannot be found."""
        image = self.image.stat()
        if self.mask is None:
            return image.st_size, image.st_mtime_ns, 0, 0
        mask = self.mask.stat()
        return image.st_size, image.st_mtime_ns, mask.st_size, mask.st_mtime_ns

    def digests(self) -> tuple[str, str]:
        """sha256 of the image's bytes and of the mask's ("" where there is none), in hex."""
        return file_digest(self.image), "" if self.mask is None else file_digest(self.mask)


def file_digest(path: Path) -> str:
    """sha256 of a file in hex, read in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def sources_of(scene: Scene, frames: Sequence[int]) -> tuple[Source, ...]:
    """The files behind `frames` (indices into `scene.frames`), in that order."""
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
    """Names a selection: the same files at the same sizes in the same order have the same key."""
    parts = [
        [os.path.abspath(s.image), "" if s.mask is None else os.path.abspath(s.mask), s.width, s.height]
        for s in sources
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]

"""Photos of a corner of a room whose three walls have a random texture, with poses that are known. For `ingest`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from raymine.cameras import look_at

WIDTH, HEIGHT, FOCAL = 320, 240, 300.0


def texture(seed: int, side: int = 512) -> np.ndarray:
    """[side, side, 3] in 0..255: noise of several sizes, in which features are found everywhere."""
    rng = np.random.default_rng(seed)
    total = np.zeros((side, side, 3))
    for cells, weight in ((8, 1.0), (32, 1.0), (96, 1.2)):
        coarse = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        total += weight * np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), dtype=np.float64)
    low, high = total.min(), total.max()
    return (total - low) / (high - low) * 255.0


def poses(count: int, turn: float = 50.0) -> np.ndarray:
    """[count, 3, 4] camera-to-world: an arc of `turn` degrees around the corner, in two heights."""
    found = []
    for i, angle in enumerate(np.radians(np.linspace(45 - turn / 2, 45 + turn / 2, count))):
        position = np.array([2.6 * np.cos(angle), 2.6 * np.sin(angle), 1.2 + 0.4 * (i % 2)])
        found.append(look_at(position, np.array([0.45, 0.45, 0.45]), np.array([0.0, 0.0, 1.0])))
    return np.stack(found)[:, :3]


def photo(pose: np.ndarray) -> Image.Image:
    """What a pinhole camera sees of the walls x = 0, y = 0 and z = 0, each from 0 to 2 along its sides."""
    scale = 2  # Rendered at twice the size and reduced, against jagged edges.
    x, y = np.meshgrid(np.arange(WIDTH * scale) + 0.5, np.arange(HEIGHT * scale) + 0.5)
    local = np.stack(
        [
            (x - WIDTH * scale / 2) / (FOCAL * scale),
            -(y - HEIGHT * scale / 2) / (FOCAL * scale),
            -np.ones_like(x),
        ],
        axis=-1,
    )
    rays, origin = local @ pose[:, :3].T, pose[:, 3]
    picture, nearest = np.full((*x.shape, 3), 128.0), np.full(x.shape, np.inf)
    for axis in range(3):
        with np.errstate(divide="ignore"):
            distance = -origin[axis] / rays[..., axis]
        at = np.delete(origin + distance[..., None] * rays, axis, axis=-1) / 2.0
        seen = (distance > 0) & (distance < nearest) & (at >= 0).all(-1) & (at < 1).all(-1)
        wall = texture(axis)
        index = (at[seen] * len(wall)).astype(int)
        picture[seen], nearest[seen] = wall[index[:, 0], index[:, 1]], distance[seen]
    return Image.fromarray(picture.astype(np.uint8)).resize((WIDTH, HEIGHT), Image.Resampling.BOX)


def write_photos(folder: Path, count: int = 8) -> np.ndarray:
    """Write `view_00.jpg` and so on; returns their poses."""
    folder.mkdir(parents=True, exist_ok=True)
    found = poses(count)
    for i, pose in enumerate(found):
        photo(pose).save(folder / f"view_{i:02d}.jpg", quality=95)
    return found


def blurred(image: Image.Image, radius: float = 4.0) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(radius))

"""Writes scenes of a few small pictures of a disc in Blender's format."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from PIL import Image


def write_scene(folder: Path, shade: int = 200) -> Path:
    """Four training views and one test view of 8x8 pixels around the origin; a disc on a transparent background."""
    y, x = np.mgrid[0:8, 0:8]
    disc = ((x - 3.5) ** 2 + (y - 3.5) ** 2 < 9).astype(np.uint8)
    for split, angles in (("train", (0, 90, 180, 270)), ("test", (45,))):
        frames = []
        for angle in angles:
            turn = math.radians(angle)
            pose = np.eye(4)
            # A camera on the circle of radius 4 that looks at the origin, z backward, with the world's z up.
            back = np.array([math.cos(turn), math.sin(turn), 0.0])
            right = np.array([-math.sin(turn), math.cos(turn), 0.0])
            pose[:3, :3] = np.stack([right, [0.0, 0.0, 1.0], back], axis=1)
            pose[:3, 3] = 4 * back
            frames.append({"file_path": f"./{split}/r_{angle}", "transform_matrix": pose.tolist()})
            pixels = np.stack([disc * shade, disc * (angle // 2), disc * 90, disc * 255], axis=-1)
            (folder / split).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / split / f"r_{angle}.png")
        text = json.dumps({"camera_angle_x": 0.7, "frames": frames})
        (folder / f"transforms_{split}.json").write_text(text)
    return folder


def write_scene_of_eight(folder: Path) -> Path:
    """A disc seen from eight sides in Blender's format, 3 of them held out."""
    y, x = np.mgrid[:16, :16] - 7.5
    inside = (x * x + y * y < 30)[..., None]
    for split, angles in (("train", np.arange(5) * 1.25), ("test", np.arange(3) * 2.0 + 0.4)):
        (folder / split).mkdir(parents=True)
        frames = []
        for i, angle in enumerate(angles):
            rgba = np.where(inside, [200, 60 + 10 * i, 40 + len(split), 255], [0, 0, 0, 0]).astype(np.uint8)
            Image.fromarray(rgba).save(folder / split / f"r_{i}.png")
            c, s = math.cos(angle), math.sin(angle)
            matrix = [[-s, 0.0, c, 4 * c], [c, 0.0, s, 4 * s], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
            frames.append({"file_path": f"./{split}/r_{i}", "transform_matrix": matrix})
        (folder / f"transforms_{split}.json").write_text(json.dumps({"camera_angle_x": 0.7, "frames": frames}))
    return folder

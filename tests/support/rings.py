"""A scene in files, of twelve training views all around, for tests of what is said about single images."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from PIL import Image

COUNT = 12


def write_ring(folder: Path) -> Path:
    """Twelve training views and two test views of a disc, r_0 to r_11, from all sides."""
    for split, count in (("train", COUNT), ("test", 2)):
        frames = []
        (folder / split).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(np.full((8, 8, 4), 200, np.uint8)).save(folder / split / f"r_{i}.png")
            c, s = math.cos(2 * math.pi * i / count), math.sin(2 * math.pi * i / count)
            pose = [[-s, 0.0, c, 4 * c], [c, 0.0, s, 4 * s], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
            frames.append({"file_path": f"./{split}/r_{i}", "transform_matrix": pose})
        (folder / f"transforms_{split}.json").write_text(json.dumps({"camera_angle_x": 0.7, "frames": frames}))
    return folder

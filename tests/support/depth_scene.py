"""Writes scenes whose frames have depth maps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from support.scene_writers import ring

SIDE = 16


def write_depth_scene(folder: Path, files: list[str], **keys: float) -> Path:
    """Frames around a point at 3 units, each with a depth map that says 3000 (or, in .npy files, 3000.0)."""
    capture, frames = ring(len(files)), []
    folder.mkdir()
    for i, name in enumerate(files):
        rgb = np.random.default_rng(i).integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(rgb).save(folder / f"{i}.png")
        depth = np.full((SIDE // 2, SIDE // 2), 3000)
        depth[0, 0] = 0
        if name.endswith(".npy"):
            np.save(folder / name, depth.astype(np.float32))
        elif name:
            Image.fromarray(depth.astype(np.uint16)).save(folder / name)
        frame = {"file_path": f"{i}.png", "transform_matrix": capture.opengl(i)}
        frames.append(frame | ({"depth_file_path": name} if name else {}))
    document = {"w": SIDE, "h": SIDE, "fl_x": 14.0, "fl_y": 14.0, **keys, "frames": frames}
    (folder / "transforms.json").write_text(json.dumps(document))
    return folder

"""A digest of a scene without its pixels."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from raymine.contracts import Scene

_DECIMALS = 6


def scene_digest(scene: Scene) -> str:
    """sha256 in hex of image and mask names, poses, cameras, splits, times, ranges, bounds, downscale and background.

    Names are relative to the scene folder, so the folder may move. Numbers are rounded to six decimals, because the
    last bits of a normalised pose depend on the linear algebra library, and a run must find its scene again on another
    machine. The content of images is not read.
    """
    cameras = [[c.width, c.height, c.model, *_rounded(c.fx, c.fy, c.cx, c.cy, *c.distortion)] for c in scene.cameras]
    frames = [
        {
            "image": _relative(f.image, scene.root),
            "mask": None if f.mask is None else _relative(f.mask, scene.root),
            "camera": cameras[f.camera],
            "pose": _rounded(*f.pose.reshape(-1).tolist()),
            "split": f.split,
            "time": None if f.time is None else _rounded(f.time),
            "range": [None if v is None else _rounded(v) for v in (f.near, f.far)],
        }
        for f in scene.frames
    ]
    b = scene.bounds
    bounds = [*_rounded(*b.low, *b.high, b.near, b.far), b.levels]
    document = {"frames": frames, "bounds": bounds, "downscale": scene.downscale, "background": scene.background}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _rounded(*values: float) -> list[float]:
    # Adding zero turns -0.0 into 0.0; JSON would write the two differently.
    return [round(float(v), _DECIMALS) + 0.0 for v in values]


def _relative(path: Path, root: Path) -> str:
    return Path(os.path.relpath(path, root)).as_posix()

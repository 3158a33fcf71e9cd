"""A scene that moves: frames with times, the recipe `dynamic`, and pictures of one view at several moments.

    python examples/09_dynamic_scene.py [--steps 400] [--views 120] [--out moving]

A ball goes to and fro while the camera is somewhere else in every frame. The scene is written in the format of D-NeRF:
transforms_train.json with a `time` in 0..1 for each frame.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
from PIL import Image

import raymine

SIZE, FOCAL, RADIUS = 32, 42.0, 0.45


def centre(time: float) -> np.ndarray:
    """[3] where the ball is."""
    return np.array([0.6 * math.cos(2 * math.pi * time), 0.0, 0.3 * math.sin(2 * math.pi * time)])


def picture(pose: np.ndarray, time: float) -> np.ndarray:
    """[SIZE, SIZE, 4] uint8: the ball, coloured by its normal, seen from a pose [4, 4] at a time."""
    x, y = np.meshgrid(np.arange(SIZE) + 0.5 - SIZE / 2, np.arange(SIZE) + 0.5 - SIZE / 2)
    rays = np.stack((x / FOCAL, -y / FOCAL, -np.ones_like(x)), -1) @ pose[:3, :3].T
    rays /= np.linalg.norm(rays, axis=-1, keepdims=True)
    origin = pose[:3, 3] - centre(time)
    along = rays @ origin
    inside = along**2 - origin @ origin + RADIUS**2
    normal = (origin + (-along - np.sqrt(inside.clip(0)))[..., None] * rays) / RADIUS
    rgba = np.concatenate((0.5 + 0.5 * normal, np.ones_like(x)[..., None]), -1) * (inside > 0)[..., None]
    return (rgba * 255).round().astype(np.uint8)


def write_scene(folder: Path, views: int) -> None:
    """Training views at times from 0 to 1, and 5 test views at times between them, from other sides."""
    for split, count, first in (("train", views, 0.0), ("test", 5, 1.0)):
        (folder / split).mkdir(parents=True)
        frames = []
        for i in range(count):
            time, turn = (i + first / 2) / count, first + 2.4 * i
            eye = 3 * np.array([math.cos(turn), math.sin(turn), 0.5 * math.sin(3 * i)])
            pose = np.eye(4)
            pose[:3] = raymine.look_at(eye, [0.0, 0.0, 0.0], [0.0, 0.0, 1.0])[:3]
            Image.fromarray(picture(pose, time)).save(folder / split / f"{i:03d}.png")
            frames.append({"file_path": f"./{split}/{i:03d}", "time": time, "transform_matrix": pose.tolist()})
        text = json.dumps({"camera_angle_x": 2 * math.atan(SIZE / 2 / FOCAL), "frames": frames})
        (folder / f"transforms_{split}.json").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a scene that moves.")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--views", type=int, default=120)
    parser.add_argument("--out", type=Path, default=Path("moving"))
    options = parser.parse_args()
    write_scene(options.out / "scene", options.views)
    small = {"field.grid.levels": 4, "field.grid.finest": 64}  # what pictures of this size can show
    for recipe, settings in (("dynamic", small), ("ngp", small)):
        common = {"steps": options.steps, "overrides": settings}
        run = raymine.train(options.out / "scene", recipe, out=options.out / recipe, **common)
        print(f"{recipe}: PSNR {run.evaluate().psnr:.2f} dB on views at other times")
        if recipe == "dynamic":
            frame = run.scene.frames[0]
            for time in (0.0, 0.25, 0.5, 0.75):
                run.render(frame, time=time, size=(128, 128)).save(options.out / f"time_{time:.2f}.png")


if __name__ == "__main__":
    main()

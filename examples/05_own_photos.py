"""Photos without poses -> scene -> trained model -> video.

    python examples/05_own_photos.py [PHOTOS] [--downscale 2] [--steps 1000] [--out own_photos]

PHOTOS is a folder of photos or a video. Without it, raymine draws photos of its built-in scene, as a phone would take
them on a walk around it, and throws their poses away. Needs the extras `ingest` and `video`.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from PIL import Image

import raymine
from raymine.export import orbit, write_mp4
from raymine.pictures import to_uint8
from raymine.scenes.builtin.tracer import Tracer
from raymine.scenes.builtin.views import look_at_centre


def draw_photos(folder: Path, count: int, size: int) -> Path:
    """JPEG files without poses: two rows of photos, 9 degrees from one to the next."""
    folder.mkdir(parents=True)
    tracer = Tracer()
    for number in range(count):
        pose = look_at_centre(math.radians(9 * number), math.radians(25 + 14 * (number % 2)))
        rgba = tracer.render(pose, 0.9 * size, size).astype(np.float32)
        alpha = rgba[:, :, 3:] / 255
        rgb = alpha * rgba[:, :, :3] + (1 - alpha) * 255
        Image.fromarray(rgb.round().astype(np.uint8)).save(folder / f"photo_{number:03d}.jpg", quality=95)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="From photos to a video.")
    parser.add_argument("photos", nargs="?", type=Path)
    parser.add_argument("--count", type=int, default=40, help="photos of the built-in scene, if no folder is given")
    parser.add_argument("--size", type=int, default=600, help="their width and height")
    parser.add_argument("--downscale", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("own_photos"))
    options = parser.parse_args()

    photos = options.photos or draw_photos(options.out / "photos", options.count, options.size)
    found = raymine.ingest(photos, out=options.out / "scene")
    print(f"{found.registered} of {len(found.verdicts)} photos have a pose, error {found.error:.2f} pixels")

    settings = {"steps": options.steps, "downscale": options.downscale}
    run = raymine.train(options.out / "scene", out=options.out / "run", **settings)
    scores = run.evaluate(out=options.out / "scores")
    print(f"PSNR {scores.psnr:.2f} dB over {len(scores.views)} photos that were not trained on")

    path = orbit(run.scene, options.frames)
    pictures = (
        to_uint8(run.render(camera, pose).colour) for camera, pose in zip(path.cameras, path.poses, strict=True)
    )
    written = write_mp4(pictures, options.out / "orbit.mp4")
    print(f"{written} frames are in {options.out / 'orbit.mp4'}")


if __name__ == "__main__":
    main()

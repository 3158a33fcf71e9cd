"""Makes a small folder of scenes to copy to another machine: what raymine reads, and no more.

    python benchmarks/plans/carry.py OUT SCENE... [--most 64] [--smaller]

Each scene becomes OUT/<its name>: the images that its frames name, with masks and depth maps, and its descriptions.
Files are hard links where the disk allows it, else copies. Of a COLMAP model in binary files, features that saw no
scene point are left out, which raymine does not read. `--smaller` stores PNG files as lossless WebP under their own
names: equal pixels in 0.53 to 0.75 of the bytes, which Pillow recognises by content. Each scene is read back, and must
have the digest that it had. A folder of more than `--most` MiB is an error, and is left as it is to look at.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from raymine.contracts import Scene
from raymine.errors import RaymineError
from raymine.scenes import load_scene, scene_digest
from raymine.scenes.images import IMAGE_SUFFIXES

MODEL_FILES = {"cameras", "images", "points3D"}
FEATURE = 24
"""Bytes of a feature in images.bin: two coordinates and the id of its point, -1 for none."""


def images_of(scene: Scene) -> set[Path]:
    """The files of images, masks and depth maps that frames name."""
    return {path for frame in scene.frames for path in (frame.image, frame.mask, frame.depth) if path is not None}


def descriptions_of(root: Path) -> set[Path]:
    """The files that are no images; of COLMAP's model those that raymine reads, binary ones where there are both."""
    found = set()
    for path in root.rglob("*"):
        model = "sparse" in path.relative_to(root).parts[:-1]
        unused = model and (path.stem not in MODEL_FILES or (path.suffix == ".txt" and _binary(path).exists()))
        if path.is_file() and path.suffix.lower() not in IMAGE_SUFFIXES and not unused:
            found.add(path)
    return found


def _binary(path: Path) -> Path:
    return path.with_suffix(".bin")


def without_loose_features(data: bytes) -> bytes:
    """The content of an images.bin with only those features that saw a scene point."""
    parts, at = [data[:8]], 8
    for _ in range(struct.unpack_from("<Q", data)[0]):
        end = data.index(b"\0", at + 64) + 1
        count = struct.unpack_from("<Q", data, end)[0]
        features = np.frombuffer(data, np.uint8, count * FEATURE, end + 8).reshape(count, FEATURE)
        seen = features[(features[:, 16:] != 255).any(axis=1)]
        parts += [data[at:end], struct.pack("<Q", len(seen)), seen.tobytes()]
        at = end + 8 + count * FEATURE
    return b"".join(parts)


def put(source: Path, target: Path, smaller: bool) -> None:
    """Link, copy or shrink one file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    if source.name == "images.bin":
        target.write_bytes(without_loose_features(source.read_bytes()))
        return
    if smaller and source.suffix.lower() == ".png":
        with Image.open(source) as image:
            if image.mode in ("RGB", "RGBA"):
                image.save(target, "WEBP", lossless=True, exact=True, quality=75, method=4)
                return
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def carry(path: Path, out: Path, smaller: bool) -> int:
    """Put one scene into `out`, and return its bytes. `RaymineError` if it is another scene there."""
    scene, root = load_scene(path), path.resolve()
    target = out / root.name
    files = {*images_of(scene), *descriptions_of(root)}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda file: put(file, target / file.resolve().relative_to(root), smaller), files))
    if scene_digest(load_scene(target)) != scene_digest(scene):
        raise RaymineError(f"{target} is read as another scene than {path}.", hint="Carry the whole folder.")
    return sum(file.stat().st_size for file in target.rglob("*") if file.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("scenes", type=Path, nargs="+", metavar="SCENE")
    parser.add_argument("--most", type=float, default=64.0, help="MiB that the folder may hold")
    parser.add_argument("--smaller", action="store_true", help="store PNG files as lossless WebP")
    options = parser.parse_args()
    try:
        for scene in options.scenes:
            print(f"{carry(scene, options.out, options.smaller) / 2**20:8.1f} MiB  {scene}", flush=True)
    except RaymineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    total = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file()) / 2**20
    print(f"{total:8.1f} MiB  {options.out}")
    if total > options.most:
        print(f"error: {options.out} may hold {options.most:g} MiB. Name fewer scenes.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Blender scenes: `transforms_train.json`, `transforms_val.json`, `transforms_test.json`, as in NeRF-synthetic.

There is one file per split, with one `camera_angle_x` per file (or any of the keys of a transforms.json). `file_path`
is mostly without an extension. Frames of dynamic scenes (D-NeRF) have a `time`. Poses already have raymine's
convention.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from raymine.contracts import Split
from raymine.errors import option
from raymine.scenes.images import ImageFinder
from raymine.scenes.parsed import Intrinsics, Parsed, RawFrame
from raymine.scenes.unused import KEYS

from .jsonfiles import (
    has_intrinsics,
    read_aabb_scale,
    read_depth_unit,
    read_frames,
    read_intrinsics,
    read_number,
    read_object,
    read_pose,
)

SPLITS: tuple[Split, ...] = ("train", "val", "test")


def is_blender(root: Path) -> bool:
    """Whether the folder contains a file of this format."""
    return any(os.path.lexists(root / f"transforms_{split}.json") for split in SPLITS)


def parse_blender(root: Path) -> Parsed:
    """Reads every split that exists."""
    parsed = Parsed(root, "blender", "transforms_train.json", object_scene=True)
    finder = ImageFinder(root)
    found: list[Split] = []
    for split in SPLITS:
        path = root / f"transforms_{split}.json"
        if not os.path.lexists(path):
            continue
        document = read_object(path, parsed)
        if document is None:
            continue
        frames = parse_frames(document, path.name, split, finder, parsed)
        if frames:
            found.append(split)
            parsed.frames += frames
        parsed.aabb_scale = read_aabb_scale(document, path.name, parsed) or parsed.aabb_scale
    if not os.path.lexists(root / "transforms_train.json"):
        fix = "Add it, or rename one of the others: training needs a train split."
        parsed.error("transforms_train.json", "does not exist, only other splits do.", fix)
    parsed.own_split = len(found) > 1
    return parsed


def parse_frames(
    document: dict[str, Any], source: str, split: Split | None, finder: ImageFinder, parsed: Parsed
) -> list[RawFrame]:
    """The frames of a transforms file that have a name and a pose. The others are recorded as problems."""
    frames = []
    parsed.unused_keys.update(document.keys() & KEYS.keys())
    parsed.depth_unit = read_depth_unit(document, source, parsed)
    shared: Intrinsics | None = None
    for i, entry in enumerate(read_frames(document, source, parsed)):
        name = entry.get("file_path")
        if not isinstance(name, str) or not name:
            fix = "Each frame needs a `file_path` and a `transform_matrix`."
            parsed.error(f"{source} frames[{i}]", "has no `file_path`.", fix, "json")
            continue
        where = f"{source} frames[{i}] ({name})"
        parsed.unused_keys.update(entry.keys() & KEYS.keys())
        pose = read_pose(entry, where, parsed)
        if has_intrinsics(entry):
            intrinsics = read_intrinsics({**document, **entry}, where, parsed)
        else:
            shared = shared or read_intrinsics(document, source, parsed)
            intrinsics = shared
        time = read_number(entry, "time", where, parsed)
        mask = _find_mask(entry, where, finder, parsed)
        if pose is not None:
            depth = _find_depth(entry, where, finder, parsed)
            frames.append(RawFrame(name, where, finder.find(name), intrinsics, pose, split, time, mask, depth=depth))
    return frames


def _find_mask(entry: dict[str, Any], where: str, finder: ImageFinder, parsed: Parsed) -> Path | None:
    name = entry.get("mask_path")
    if not isinstance(name, str) or not name:
        return None
    mask = finder.find(name)
    if mask is None:
        fix = "Add the mask, or remove `mask_path` to learn from the whole image."
        parsed.warn(where, f"names the mask {name}, which does not exist; the image is used without one.", fix, "mask")
    return mask


def _find_depth(entry: dict[str, Any], where: str, finder: ImageFinder, parsed: Parsed) -> Path | None:
    name = entry.get("depth_file_path")
    if not isinstance(name, str) or not name:
        return None
    depth = finder.find_file(name)
    if depth is None:
        fix = f"Add it, or remove `depth_file_path`. It is used with {option('depth_loss')} only."
        parsed.warn(
            where, f"names the depth map {name}, which does not exist; the image is used without one.", fix, "depth"
        )
    return depth

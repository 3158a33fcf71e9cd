"""nerfstudio and instant-ngp scenes: one `transforms.json` with shared or per-frame cameras.

Additional keys, compared with Blender: focal lengths and principal point in pixels of `w` x `h`, lens distortion,
masks, `aabb_scale` (instant-ngp's hint at the size of the scene), and lists of file names per split (nerfstudio).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from raymine.contracts import Split
from raymine.quantities import listing
from raymine.scenes.images import ImageFinder
from raymine.scenes.parsed import Parsed, RawFrame

from .blender import SPLITS, parse_frames
from .jsonfiles import read_aabb_scale, read_object


def parse_transforms(path: Path) -> Parsed:
    """Reads the transforms file `path`."""
    parsed = Parsed(path.parent, "transforms", path.name)
    document = read_object(path, parsed)
    if document is None:
        return parsed
    parsed.frames = parse_frames(document, path.name, None, ImageFinder(path.parent), parsed)
    parsed.aabb_scale = read_aabb_scale(document, path.name, parsed)
    _apply_lists(document, parsed)
    return parsed


def _apply_lists(document: dict[str, Any], parsed: Parsed) -> None:
    """Assigns frames to splits by `train_filenames`, `val_filenames` and `test_filenames`, if there are such lists."""
    lists: dict[Split, list[str]] = {}
    for split in SPLITS:
        names = document.get(f"{split}_filenames")
        if isinstance(names, list):
            lists[split] = [str(n) for n in names]
    if not lists.get("train"):
        return
    split_of = {_plain(name): split for split, names in lists.items() for name in names}
    kept: list[RawFrame] = []
    left_out: list[str] = []
    for frame in parsed.frames:
        name = _plain(frame.name)
        if name in split_of:
            kept.append(replace(frame, split=split_of[name]))
        else:
            left_out.append(frame.name)
    if left_out:
        what = f"{len(left_out)} frames are in no list of file names and are left out: {listing(left_out)}."
        parsed.warn(parsed.source, what, "Add them to `train_filenames` to use them.", "split")
    unknown = sorted(split_of.keys() - {_plain(frame.name) for frame in parsed.frames})
    if unknown:
        what = f"the lists of file names hold {len(unknown)} names that no frame has: {listing(unknown)}."
        parsed.warn(parsed.source, what, "Remove them from the lists, or add the frames.", "split")
    parsed.frames = kept
    parsed.own_split = True


def _plain(name: str) -> str:
    return name.replace("\\", "/").removeprefix("./")

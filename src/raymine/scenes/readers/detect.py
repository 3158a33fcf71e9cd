"""Detects the format of a scene folder, and calls its reader."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from raymine.quantities import listing
from raymine.scenes.images import images_in
from raymine.scenes.parsed import Parsed

from .blender import is_blender, parse_blender
from .colmap import find_model, find_partial_model, parse_colmap
from .llff import parse_llff
from .transforms import parse_transforms

FORMAT_NAMES = {
    "blender": "Blender (transforms_train.json)",
    "transforms": "nerfstudio / instant-ngp (transforms.json)",
    "colmap": "COLMAP sparse model",
    "llff": "LLFF (poses_bounds.npy)",
    "unknown": "unknown",
}
_EXPECTED = (
    "A scene has transforms_train.json (Blender), transforms.json (nerfstudio, instant-ngp), sparse/0 (COLMAP) or "
    "poses_bounds.npy (LLFF)."
)


def parse_scene(path: Path, downscale: int) -> Parsed:
    """Reads a scene folder or a transforms file with the first format that matches."""
    unknown = Parsed(path, "unknown", path.name or str(path))
    try:
        folder = stat.S_ISDIR(path.stat().st_mode)
        if not folder and path.suffix.lower() == ".json":
            return _described(parse_transforms(path))
        if not folder:
            unknown.error(str(path), "is a file, not a scene folder.", _EXPECTED, "unknown-format")
            return unknown
        entries = [p for p in path.iterdir() if not p.name.startswith(".")]
    except FileNotFoundError:
        fix = "Check the spelling; `raymine demo` needs no scene at all."
        unknown.error(str(path), "there is no such folder.", fix, "no-such-path")
        return unknown
    except PermissionError:
        unknown.error(str(path), "may not be read.", "Give yourself permission to read the folder.", "permission")
        return unknown
    except (OSError, ValueError) as error:
        what = f"cannot be opened: {getattr(error, 'strerror', None) or error}."
        unknown.error(str(path), what, "Check the path.", "no-such-path")
        return unknown
    if not entries:
        unknown.error(str(path), "the folder is empty.", _EXPECTED, "empty")
        return unknown
    return _described(_parse_folder(path, downscale, unknown))


def _parse_folder(path: Path, downscale: int, unknown: Parsed) -> Parsed:
    if is_blender(path):
        return parse_blender(path)
    if os.path.lexists(path / "transforms.json"):
        return parse_transforms(path / "transforms.json")
    if find_model(path) is not None:
        return parse_colmap(path, downscale)
    partial = find_partial_model(path)
    missing = ""
    if partial is not None:
        other = "images" if partial.stem == "cameras" else "cameras"
        missing = f"{partial.relative_to(path).as_posix()} has no {other}{partial.suffix} beside it"
    if os.path.lexists(path / "poses_bounds.npy"):
        parsed = parse_llff(path, downscale)
        if missing:
            parsed.decisions.insert(0, f"The COLMAP model is incomplete ({missing}); poses_bounds.npy is used instead.")
        return parsed
    if missing:
        fix = "Export the whole model with COLMAP."
        unknown.error(str(path), f"the COLMAP model is incomplete: {missing}.", fix, "unknown-format")
    elif images_in(path) or images_in(path / "images"):
        what = "holds images but nothing that says where they were taken from."
        fix = f"Compute poses first: `raymine ingest {shlex.quote(str(path))}`. {_EXPECTED}"
        unknown.error(str(path), what, fix, "unknown-format")
    else:
        broken = sorted(p.name for p in path.iterdir() if not os.path.exists(p))
        links = f" It has links that lead nowhere: {listing(broken)}." if broken else ""
        what = f"has none of the files that raymine knows.{links}"
        unknown.error(str(path), what, _EXPECTED, "unknown-format")
    return unknown


def _described(parsed: Parsed) -> Parsed:
    parsed.decisions.insert(0, f"Format: {FORMAT_NAMES[parsed.format]}, {len(parsed.frames)} frames.")
    return parsed

"""What a scene folder holds that raymine does not use, in words for the user.

Nothing here is a problem: such files are common. A user should know that they change nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from .images import images_in
from .parsed import Parsed

# Words in the names of files and folders, and what such files hold.
_KINDS = {
    "depth": "depth maps",
    "normal": "normal maps",
    "segmentation": "segmentations",
    "semantic": "segmentations",
    "flow": "optical flow",
    "mask": "masks",
}
# Keys of transforms files, and what they hold.
KEYS = {
    "depth_path": "depth maps",
    "normal_file_path": "normal maps",
    "semantics_path": "segmentations",
    "appearance_id": "appearance of single images",
    "appearance_embedding": "appearance of single images",
    "exposure": "exposure of single images",
    "ply_file_path": "a point cloud",
}
_OTHER_SUFFIXES = (".heic", ".heif", ".avif", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".exr", ".hdr", ".mp4", ".mov")


def unused_content(parsed: Parsed) -> tuple[str, ...]:
    """Phrases such as "depth maps (`depth_file_path` in 50 places)", one for each kind of content without a use."""
    used = {path for frame in parsed.frames for path in (frame.image, frame.mask, frame.depth) if path is not None}
    folders = sorted({path.parent for path in used})
    return (*_keys(parsed), *_in_folders(parsed, folders), *_beside(folders, used), *_other_files(parsed, folders))


def _keys(parsed: Parsed) -> Iterator[str]:
    for key, count in parsed.unused_keys.items():
        yield f"{KEYS[key]} (`{key}` in {_times(count, 'place')})"


def _in_folders(parsed: Parsed, used: list[Path]) -> Iterator[str]:
    """Folders of the scene that hold other things than the images in use, and further COLMAP models."""
    for folder in _entries(parsed.root):
        kind = _kind(folder.name)
        if kind is not None and folder.is_dir() and not any(path.is_relative_to(folder) for path in used):
            yield f"{kind} (folder `{folder.name}`, {_times(len(_entries(folder)), 'file')})"
    if parsed.format == "colmap" and parsed.source.endswith("/0"):
        own = parsed.root / parsed.source
        others = [p.name for p in _entries(own.parent) if p.is_dir() and p.name.isdigit() and p.name != own.name]
        if others:
            yield f"other parts of the COLMAP reconstruction ({', '.join(others)} beside `{parsed.source}`)"


def _beside(folders: list[Path], used: set[Path]) -> Iterator[str]:
    """Images in the folders of the frames that no frame names."""
    found: Counter[str] = Counter()
    for folder in folders:
        for path in images_in(folder):
            if path not in used:
                found[_kind(path.stem) or "images without a pose"] += 1
    for kind, count in found.items():
        yield f"{kind} ({_times(count, 'file')} beside the images of the frames)"


def _other_files(parsed: Parsed, folders: list[Path]) -> Iterator[str]:
    """Photos and videos of formats that raymine does not read."""
    suffixes = [p.suffix.lower() for folder in {parsed.root, *folders} for p in _entries(folder)]
    for suffix, count in sorted(Counter(s for s in suffixes if s in _OTHER_SUFFIXES).items()):
        yield f"{_times(count, 'file')} of type {suffix}, which raymine does not read"


def _kind(name: str) -> str | None:
    return next((kind for word, kind in _KINDS.items() if word in name.lower()), None)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder) if not entry.name.startswith("."))
    except OSError:
        return []


def _times(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"

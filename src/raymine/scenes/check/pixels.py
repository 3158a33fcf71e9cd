"""Checks of pixels: reads and decodes every image, and compares it with the others."""

from __future__ import annotations

import hashlib
import io
import os
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from raymine.scenes.images import ImageHeader, read_header
from raymine.scenes.parsed import Parsed
from raymine.scenes.problems import Problem

_RESTORE = "Restore the file from its source, or remove its frame."


@dataclass(frozen=True)
class FileCheck:
    """Result of reading one file. digest: of its bytes. fault: why it is unreadable. blank: in what way it is blank."""

    path: Path
    digest: str
    fault: str | None = None
    blank: str | None = None


def check_pixels(parsed: Parsed, progress: Callable[[int, int], None] | None) -> list[Problem]:
    """Finds unreadable images and masks, blank images, masks of the wrong size, and images with the same content."""
    names = {f.image: f.name for f in parsed.frames if f.image is not None}
    images = list(names)
    masks = sorted({f.mask for f in parsed.frames if f.mask is not None})
    done = _decode_all(images + masks, progress)
    reported = {p.file for p in parsed.problems if p.kind == "unreadable-image"}
    problems = []
    for item in done:
        name = names.get(item.path) or _relative(item.path, parsed.root)
        if item.fault is not None and name not in reported:
            kind = "mask" if item.path in masks else "unreadable-image"
            problems.append(Problem(name, item.fault, _RESTORE, "error", kind))
    same: dict[str, list[str]] = defaultdict(list)
    for item in done[: len(images)]:
        if item.fault is None:
            same[item.digest].append(names[item.path])
    for group in same.values():
        if len(group) > 1:
            what = f"has the same content as {', '.join(group[1:])}."
            fix = "Remove all but one; if their poses differ, all but one are wrong."
            problems.append(Problem(group[0], what, fix, "warning", "duplicate-image", tuple(group)))
    return problems + _check_blanks(done, names) + _check_mask_sizes(parsed)


def _check_blanks(done: list[FileCheck], names: dict[Path, str]) -> list[Problem]:
    """A warning for each blank image, or one error if all images are blank."""
    images = [item for item in done if item.path in names and item.fault is None]
    blank = [(names[item.path], item.blank) for item in images if item.blank is not None]
    if blank and len(blank) == len(images):
        name, what = blank[0]
        what, fix = f"{what[:-1]}, and no other image shows anything.", "Check how the images were made or exported."
        return [Problem(name, what, fix, "error", "blank-image", tuple(name for name, _ in blank))]
    return [Problem(name, what, _RESTORE, "warning", "blank-image") for name, what in blank]


def _decode_all(paths: list[Path], progress: Callable[[int, int], None] | None) -> list[FileCheck]:
    done = []
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for i, result in enumerate(pool.map(_decode, paths), start=1):
            done.append(result)
            if progress is not None:
                progress(i, len(paths))
    return done


def _decode(path: Path) -> FileCheck:
    try:
        data = path.read_bytes()
    except OSError as error:
        return FileCheck(path, "", f"cannot be opened: {error.strerror}.")
    digest = hashlib.sha256(data).hexdigest()
    if not data:
        return FileCheck(path, digest, "is empty (0 bytes).")
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            blank = _blank(image)
    except Image.DecompressionBombError:
        return FileCheck(path, digest, "is larger than 179 megapixels, more than Pillow will decode.")
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        # Pillow raises several unrelated exceptions for damaged files; for a broken PNG chunk a SyntaxError.
        cut = "truncated" in str(error) or "broken data stream" in str(error)
        words = "is cut short: its pixels end before the picture does." if cut else f"cannot be decoded: {error}."
        return FileCheck(path, digest, words)
    return FileCheck(path, digest, blank=blank)


def _blank(image: Image.Image) -> str | None:
    """A message if an image is transparent or has one colour everywhere; otherwise None."""
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") and image.getchannel(image.getbands()[-1]).getextrema()[1] == 0:
        return "is transparent everywhere."
    bands = image.convert("RGB").getextrema() if image.mode == "P" else image.getextrema()
    ranges = bands if isinstance(bands[0], tuple) else (bands,)
    return "has one colour everywhere." if all(low == high for low, high in ranges) else None


def _check_mask_sizes(parsed: Parsed) -> list[Problem]:
    problems = []
    for frame in parsed.frames:
        if frame.image is None or frame.mask is None:
            continue
        image, mask = _header(frame.image), _header(frame.mask)
        if image is None or mask is None or image.shown == mask.shown:
            continue
        what = (
            f"the mask {_relative(frame.mask, parsed.root)} is {mask.shown[0]}x{mask.shown[1]}, "
            f"its image {image.shown[0]}x{image.shown[1]}."
        )
        problems.append(Problem(frame.name, what, "Make the mask the size of its image.", "error", "mask"))
    return problems


def _header(path: Path) -> ImageHeader | None:
    try:
        return read_header(path)
    except (OSError, ValueError, SyntaxError):
        return None


def _relative(path: Path, root: Path) -> str:
    return Path(os.path.relpath(path, root)).as_posix()

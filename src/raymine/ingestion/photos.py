"""Upright copies of photos, and what their headers and pixels tell.

COLMAP ignores the EXIF orientation, and its poses belong to the pixels as they are stored. So a photo that is stored
turned is written upright, without the tag, and poses belong to what people see. Others are copied byte by byte.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from raymine.files import UnreadableFile
from raymine.scenes.images import has_alpha, open_image, orientation_of

from .sharpness import sharpness
from .source import Skipped

QUALITY = 95
_MAKE, _MODEL, _EXIF, _FOCAL, _FOCAL_35 = 271, 272, 0x8769, 37386, 41989
_DIAGONAL_35 = math.hypot(36.0, 24.0)
_COPIED = {"JPEG": ".jpg", "PNG": ".png"}
"""Formats that COLMAP and every other reader know; others are converted."""
_SMALL_SIDE = 64
"""Pixels of a side below which there is nothing to match."""


@dataclass(frozen=True)
class Photo:
    """A picture of the staging folder. name: its file. source: the file, or the time in a video, that it comes from.

    group: pictures with the same text were taken with one camera and lens. focal: in pixels, if the header tells it.
    sharpness, brightness (0..255): of the reduced picture.
    """

    name: str
    source: str
    width: int
    height: int
    group: str
    focal: float | None
    sharpness: float
    brightness: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def write_upright(source: Path, folder: Path, taken: set[str]) -> Photo | Skipped:
    """Copy a photo into `folder`, upright; `Skipped` if it cannot be read. taken: names that are in use, lower case."""
    try:
        with open_image(source) as image:
            turned = orientation_of(image) != 1
            suffix = _COPIED.get(image.format or "")
            facts = _header(image)
            image.load()
            upright = ImageOps.exif_transpose(image) if turned else image
            if min(upright.size) < _SMALL_SIDE:
                return Skipped(source.name, f"is {upright.width}x{upright.height} pixels, too small to match.")
            name = unique_name(source.stem, suffix or (".png" if has_alpha(image) else ".jpg"), taken)
            if turned or suffix is None:
                save(upright, folder / name)
            else:
                shutil.copyfile(source, folder / name)
            return describe(name, source.name, upright, *facts)
    except UnreadableFile as error:
        return Skipped(source.name, error.what)


def describe(name: str, source: str, image: Image.Image, camera: str = "", focal_35: float | None = None) -> Photo:
    """The record of an upright picture. camera: what tells cameras apart; focal_35: as for 35 mm film."""
    width, height = image.size
    focal = focal_35 / _DIAGONAL_35 * math.hypot(width, height) if focal_35 else None
    small = image.convert("L").resize((64, 64), Image.Resampling.BOX)
    group = f"{width}x{height} {camera}".strip()
    return Photo(name, source, width, height, group, focal, sharpness(image), float(np.asarray(small).mean()))


def save(image: Image.Image, path: Path) -> None:
    """Write a picture as PNG, or as JPEG of high quality with full colour resolution."""
    if path.suffix == ".png":
        image.save(path)
    else:
        image.convert("RGB").save(path, quality=QUALITY, subsampling=0)


def unique_name(stem: str, suffix: str, taken: set[str]) -> str:
    """A file name that no other picture has, whatever the case; it is added to `taken`.

    COLMAP keeps names in text files, so spaces become underscores.
    """
    clean = "_".join(stem.split()) or "photo"
    name, number = f"{clean}{suffix}", 2
    while name.lower() in taken:
        name, number = f"{clean}-{number}{suffix}", number + 1
    taken.add(name.lower())
    return name


def _header(image: Image.Image) -> tuple[str, float | None]:
    """What tells cameras apart (make, model, focal lengths), and the focal length as for 35 mm film, if it is known."""
    if image.format == "PNG" and "exif" not in image.info:
        return "", None
    try:
        exif = image.getexif()
        inner = exif.get_ifd(_EXIF)
        make, model = (str(exif.get(tag, "")).strip("\0 ") for tag in (_MAKE, _MODEL))
        focal, focal_35 = (_number(inner.get(tag)) for tag in (_FOCAL, _FOCAL_35))
    except Exception:  # Headers of phones and editors hold anything; none of it is needed.
        return "", None
    words = [make, model, f"{focal:g} mm" if focal else "", f"({focal_35:g} mm)" if focal_35 else ""]
    return " ".join(word for word in words if word), focal_35


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return number if 1.0 <= number <= 2000.0 else None


def link_or_copy(source: Path, target: Path) -> None:
    """The same file under another name, without using space where the file system can do that."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def thumbnail(path: Path, side: int = 240) -> Image.Image:
    """A small picture for the page."""
    with open_image(path) as image:
        image.draft("RGB", (side, side))
        small = image.convert("RGB")
        small.thumbnail((side, side))
        return small


def groups_of(photos: Sequence[Photo]) -> dict[str, list[Photo]]:
    """Photos by camera and lens, in their order."""
    groups: dict[str, list[Photo]] = {}
    for photo in photos:
        groups.setdefault(photo.group, []).append(photo)
    return groups

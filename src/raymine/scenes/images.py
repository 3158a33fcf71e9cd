"""Image files: finds them by the names in scene files, and reads their headers without decoding them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".ppm", ".pgm", ".jp2", ".gif"})
_ORIENTATION = 0x0112


@dataclass(frozen=True)
class ImageHeader:
    """Size of the stored pixels, EXIF orientation (1..8), and whether there is an alpha channel."""

    width: int
    height: int
    orientation: int = 1
    alpha: bool = False

    @property
    def shown(self) -> tuple[int, int]:
        """Width and height after the orientation is applied, as raymine uses every image."""
        return (self.height, self.width) if self.orientation >= 5 else (self.width, self.height)


def read_header(path: Path) -> ImageHeader:
    """The header of an image file. OSError (or its subclass UnidentifiedImageError of Pillow) if it has none."""
    with Image.open(path) as image:
        # `getexif` would decode the whole image of a PNG without an early EXIF chunk.
        knows = image.format != "PNG" or "exif" in image.info
        orientation = image.getexif().get(_ORIENTATION, 1) if knows else 1
        alpha = "A" in image.getbands() or "transparency" in image.info
        valid = isinstance(orientation, int) and 1 <= orientation <= 8
        return ImageHeader(image.width, image.height, int(orientation) if valid else 1, alpha)


def uses_alpha(path: Path) -> bool:
    """Whether an image has transparent pixels, not only an alpha channel. It decodes the image.

    False for a damaged image; packing and checking report those.
    """
    try:
        with Image.open(path) as image:
            return bool((np.asarray(image.convert("RGBA").getchannel("A")) < 255).any())
    except (OSError, ValueError, SyntaxError):
        return False


def images_in(folder: Path) -> list[Path]:
    """The image files of a folder, ordered by name; empty if the folder does not exist."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES and not p.name.startswith("."))


class ImageFinder:
    """Finds the image file for a name in a scene file. It lists each folder only once.

    Names may lack the extension, differ from the file in case or extension, use backslashes, or be absolute paths of
    another machine. Absolute paths are looked up by file name in the scene folder and in its subfolder `images`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folders: dict[Path, dict[str, Path]] = {}

    def find(self, name: str) -> Path | None:
        """The image file for `name`, or None if there is none."""
        relative = Path(name.replace("\\", "/"))
        candidates = [self.root / relative]
        if relative.is_absolute() or ":" in name[:3]:
            candidates += [self.root / relative.name, self.root / "images" / relative.name]
        for candidate in candidates:
            found = self._match(candidate)
            if found is not None:
                return found
        return None

    def _match(self, candidate: Path) -> Path | None:
        known = self._listing(candidate.parent)
        name = candidate.name.lower()
        suffix = Path(name).suffix
        if suffix in IMAGE_SUFFIXES:
            return known.get(name) or known.get(name[: -len(suffix)])
        return known.get(name)

    def _listing(self, folder: Path) -> dict[str, Path]:
        """The images of a folder by lower-case stem, lower-case name and exact name; names precede stems."""
        if folder not in self._folders:
            files = images_in(folder)
            known = {p.stem.lower(): p for p in reversed(files)}
            known.update({p.name.lower(): p for p in files})
            known.update({p.name: p for p in files})
            self._folders[folder] = known
        return self._folders[folder]

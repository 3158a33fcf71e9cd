"""Image files: the one way to open them, their headers, and finding them by the names in scene files."""

from __future__ import annotations

import io
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from raymine.files import UnreadableFile, open_file

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".ppm", ".pgm", ".jp2", ".gif"})
MOST_PIXELS = 1_000_000_000
"""Largest image that is read, in pixels: five times the largest phone photo. It takes 4 GB of memory to decode."""

# What Pillow raises for files that are cut short, damaged or not images.
_PILLOW_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
)
_ORIENTATION = 0x0112
_LIMIT_LOCK = threading.Lock()
_limits: list[int | None] = []


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


@contextmanager
def open_image(source: Path | bytes) -> Iterator[Image.Image]:
    """Open an image file, or the bytes of one. Pixels are decoded only when they are asked for.

    Raises `UnreadableFile` for a file that is not an image, is damaged or is too large, also when the damage is found
    while pixels are decoded inside the `with` block. Pipes and devices are refused, as `open_file` does.
    """
    if isinstance(source, bytes):
        with _opened(io.BytesIO(source), len(source)) as image:
            yield image
    else:
        with open_file(source) as file, _opened(file, os.fstat(file.fileno()).st_size) as image:
            yield image


@contextmanager
def _opened(file: BinaryIO, size: int) -> Iterator[Image.Image]:
    if size == 0:
        raise UnreadableFile("is empty (0 bytes).")
    try:
        with _any_size(), Image.open(file) as image:
            if image.width * image.height > MOST_PIXELS:
                most = f"{MOST_PIXELS // 1_000_000:,} megapixels"
                raise UnreadableFile(f"says it is {image.width}x{image.height} pixels; at most {most} are read.")
            yield image
    except _PILLOW_ERRORS as error:
        raise UnreadableFile(_words(error)) from error


@contextmanager
def _any_size() -> Iterator[None]:
    """Context without Pillow's own limit on pixels, which rejects large photos.

    The limit is global. The first thread that opens an image lifts it, and the last one restores it.
    """
    with _LIMIT_LOCK:
        _limits.append(Image.MAX_IMAGE_PIXELS)
        Image.MAX_IMAGE_PIXELS = None
    try:
        yield
    finally:
        with _LIMIT_LOCK:
            # Later threads have stored None; the value to restore is the one that the first thread stored.
            last = _limits.pop()
            if not _limits:
                Image.MAX_IMAGE_PIXELS = last


def _words(error: BaseException) -> str:
    """What Pillow's error says about a file, to follow its name."""
    if isinstance(error, Image.UnidentifiedImageError):
        return "is not an image, or it is damaged at the start."
    if isinstance(error, MemoryError):
        return "needs more memory than there is to decode it."
    if isinstance(error, OSError) and error.errno is not None:
        return f"cannot be read: {error.strerror}."
    text = str(error).strip().rstrip(".") or type(error).__name__
    if "truncated" in text or "broken data stream" in text:
        return "is cut short: its pixels end before the picture does."
    return f"cannot be decoded: {text}."


def orientation_of(image: Image.Image) -> int:
    """The EXIF orientation of an opened image, 1..8; 1 if it has none. No pixels are decoded."""
    # `getexif` would decode the whole image of a PNG without an early EXIF chunk.
    if image.format == "PNG" and "exif" not in image.info:
        return 1
    value = image.getexif().get(_ORIENTATION, 1)
    return int(value) if isinstance(value, int) and 1 <= value <= 8 else 1


def has_alpha(image: Image.Image) -> bool:
    """Whether an opened image has an alpha channel, or a colour that counts as transparent."""
    return image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info


def read_header(path: Path) -> ImageHeader:
    """The header of an image file. Raises `UnreadableFile`."""
    with open_image(path) as image:
        return ImageHeader(image.width, image.height, orientation_of(image), has_alpha(image))


def uses_alpha(path: Path) -> bool:
    """Whether an image has transparent pixels, not only an alpha channel. It decodes the image.

    False for a damaged image; packing and checking report those.
    """
    try:
        with open_image(path) as image:
            return bool((np.asarray(image.convert("RGBA").getchannel("A")) < 255).any())
    except UnreadableFile:
        return False


def blank_words(image: Image.Image) -> str | None:
    """A phrase to follow the name of an image without content: transparent or one colour everywhere. Else None.

    It decodes the image.
    """
    if has_alpha(image):
        image = image.convert("RGBA")
        if image.getchannel("A").getextrema()[1] == 0:
            return "is transparent everywhere."
    bands = image.convert("RGB").getextrema() if image.mode == "P" else image.getextrema()
    ranges = bands if isinstance(bands[0], tuple) else (bands,)
    return "has one colour everywhere." if all(low == high for low, high in ranges) else None


def shows_something(path: Path) -> bool:
    """Whether an image has more than one colour. True for a damaged image, which is reported as such."""
    try:
        with open_image(path) as image:
            # A JPEG is decoded at an eighth of its size, which is quick also for the largest photos.
            image.draft(None, (64, 64))
            return blank_words(image) is None
    except UnreadableFile:
        return True


def images_in(folder: Path) -> list[Path]:
    """The image files of a folder, ordered by name; empty if the folder does not exist or cannot be read."""
    try:
        entries = list(folder.iterdir())
    except (OSError, ValueError):
        # Not a folder, or a name that no file can have.
        return []
    return sorted(p for p in entries if p.suffix.lower() in IMAGE_SUFFIXES and not p.name.startswith("."))


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

    def find_file(self, name: str) -> Path | None:
        """As `find`, for a file with any extension, which must be the one in the name."""
        path = self.root / Path(name.replace("\\", "/"))
        return path if path.is_file() else self.find(name)

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

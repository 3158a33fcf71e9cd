"""Decodes one image file to 8-bit RGB or RGBA at the size of its camera.

Every file that Pillow reads becomes RGB, or RGBA with straight alpha if the file has transparency. Downscaling averages
premultiplied colours, so that the colour of transparent pixels does not bleed into edges.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from raymine.files import UnreadableFile, read_file
from raymine.scenes.bank.sources import Source, Stamp
from raymine.scenes.images import has_alpha, open_image, orientation_of

# Bytes to write an image: one strip at a time, in two copies, as pixels and as bytes.
STRIP_COST = 10 << 20

_DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnreadableMask(UnreadableFile):
    """A mask that cannot be used. `what` follows the name of its image."""


@dataclass(frozen=True)
class Header:
    """Known before decoding: the `channels` of the packed image, and `cost`, the bytes of memory to decode it."""

    channels: int
    cost: int


@dataclass(frozen=True)
class Decoded:
    """picture: RGB or RGBA at the size of the camera. mask [H, W] uint8: 255 to use, 0 to ignore; None: no mask."""

    picture: Image.Image
    mask: np.ndarray | None
    digest: str
    mask_digest: str
    stamp: Stamp


def read_header(source: Source) -> Header:
    """Reads only the headers of a source. Raises `UnreadableFile` if its image or its mask cannot be used."""
    with open_image(source.image) as picture:
        turn = _turn_for(picture, source)
        channels = 4 if has_alpha(picture) else 3
        width, height = (source.height, source.width) if _swaps(turn) else (source.width, source.height)
        deep = picture.mode in _DEEP
        box = _draft(picture, width, height)
        pixels = picture.width * picture.height
        cost = source.image.stat().st_size + pixels * (16 if deep else 4) + min(8 * width * height, STRIP_COST)
        if picture.mode not in ("RGB", "RGBA"):
            cost += 4 * pixels
        if box != (0, 0, width, height):
            cost += 4 * width * (picture.height + height) + (4 * pixels if channels == 4 else 0)
        if turn is not None:
            cost += 4 * width * height
    if source.mask is not None:
        try:
            with open_image(source.mask) as mask:
                _turn_for(mask, source)
                cost += source.mask.stat().st_size + 5 * mask.width * mask.height
        except UnreadableFile as error:
            raise _mask_error(source.mask, error) from error
    return Header(channels, cost)


def decode(source: Source) -> Decoded:
    """Reads, hashes and decodes a source. Raises `UnreadableFile` if its image or its mask cannot be used.

    The bytes are read once, so the digest belongs to exactly the bytes that were decoded.
    """
    stamp = source.stamp()
    data = read_file(source.image)
    with open_image(data) as opened:
        picture = _fit(opened, source)
    mask, mask_digest = None, ""
    if source.mask is not None:
        try:
            mask, mask_digest = _decode_mask(source.mask, source)
        except UnreadableFile as error:
            raise _mask_error(source.mask, error) from error
    return Decoded(picture, mask, hashlib.sha256(data).hexdigest(), mask_digest, stamp)


def _mask_error(mask: Path, error: UnreadableFile) -> UnreadableMask:
    return UnreadableMask(f"cannot be used with its mask: {mask} {error.what}")


def _decode_mask(path: Path, source: Source) -> tuple[np.ndarray, str]:
    data = read_file(path)
    with open_image(data) as opened:
        grey = np.asarray(_fit(opened, source).convert("L"))
    # Masks are often saved as 0 and 1 instead of 0 and 255.
    threshold = 128 if grey.max(initial=0) > 1 else 1
    return np.where(grey >= threshold, np.uint8(255), np.uint8(0)), hashlib.sha256(data).hexdigest()


def _fit(picture: Image.Image, source: Source) -> Image.Image:
    """Decodes, converts, resizes and rotates an opened picture."""
    turn = _turn_for(picture, source)
    width, height = (source.height, source.width) if _swaps(turn) else (source.width, source.height)
    box = _draft(picture, width, height)
    picture.load()
    picture = _to_eight_bits(picture)
    if picture.mode not in ("RGB", "RGBA"):
        picture = picture.convert("RGBA" if has_alpha(picture) else "RGB")
    elif has_alpha(picture):
        picture = picture.convert("RGBA")
    picture = _resize(picture, box, width, height)
    return picture if turn is None else picture.transpose(turn)


def _turn_for(picture: Image.Image, source: Source) -> Image.Transpose | None:
    """The rotation that makes a picture upright, None if it is. Cameras of a scene describe upright pictures (`fit`).

    UnreadableFile if the upright picture does not have the aspect ratio of the camera.
    """
    turn = _TURNS.get(orientation_of(picture))
    width, height = (picture.height, picture.width) if _swaps(turn) else picture.size
    if _same_shape(width, height, source):
        return turn
    expected = f"{source.width}x{source.height}"
    raise UnreadableFile(f"is {width}x{height} pixels, which does not have the shape of its camera ({expected}).")


def _swaps(turn: Image.Transpose | None) -> bool:
    return turn in (_TURNS[5], _TURNS[6], _TURNS[7], _TURNS[8])


def _same_shape(width: int, height: int, source: Source) -> bool:
    """Whether the aspect ratio equals that of the camera, within 5 % or within the rounding of a small picture."""
    expected_width, expected_height = width * source.height / height, height * source.width / width
    return abs(expected_width - source.width) <= max(0.05 * source.width, 1.5) or abs(
        expected_height - source.height
    ) <= max(0.05 * source.height, 1.5)


def _draft(picture: Image.Image, width: int, height: int) -> tuple[float, float, float, float]:
    """Makes a JPEG decode at 1/2, 1/4 or 1/8 of its size, if that is still at least twice width x height.

    Returns the box of the (smaller) picture that contains the image.
    """
    drafted = picture.draft(None, (2 * width, 2 * height))
    return (0.0, 0.0, float(picture.width), float(picture.height)) if drafted is None else drafted[1]


def _to_eight_bits(picture: Image.Image) -> Image.Image:
    """Converts 16-bit, 32-bit and floating-point grey to 8-bit grey; returns other pictures unchanged."""
    if picture.mode not in _DEEP:
        return picture
    values = np.asarray(picture)
    if values.dtype.kind == "f":
        top = 1.0 if values.max(initial=0.0) <= 1.0 else 255.0
    else:
        top = 65535.0 if picture.mode != "I" or values.max(initial=0) > 255 else 255.0
    scaled = np.clip(np.nan_to_num(values.astype(np.float32)) * np.float32(255.0 / top), 0.0, 255.0)
    return Image.fromarray(np.rint(scaled).astype(np.uint8))


def _resize(picture: Image.Image, box: tuple[float, float, float, float], width: int, height: int) -> Image.Image:
    """`box` of a picture, resized to width x height: exact averages for integer factors, Lanczos otherwise.

    For RGBA, Pillow averages premultiplied colours in both cases, so edges neither darken nor bleed.
    """
    if picture.size == (width, height) and box == (0, 0, width, height):
        return picture
    across, down = (box[2] - box[0]) / width, (box[3] - box[1]) / height
    if across.is_integer() and down.is_integer():
        return picture.reduce((int(across), int(down)), (0, 0, int(box[2]), int(box[3])))
    return picture.resize((width, height), Image.Resampling.LANCZOS, box)

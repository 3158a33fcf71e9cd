"""LLFF and Mip-NeRF 360 scenes: `poses_bounds.npy` and a folder of images in the same order.

Each row of the file is a [3, 5] matrix and two depths. The matrix is camera-to-world with columns [down, right, back,
centre]. Its fifth column is (height, width, focal length) of the full-size camera. The images may be smaller; the
camera is then scaled to them, x and y separately. The principal point is the image centre.
"""

from __future__ import annotations

import io
import math
import struct
import tokenize
import warnings
from pathlib import Path

import numpy as np

from raymine.cameras import from_llff
from raymine.files import UnreadableFile, read_file
from raymine.scenes.images import MOST_PIXELS
from raymine.scenes.parsed import Intrinsics, Parsed, RawFrame

from .folders import choose_images

_PLACEHOLDER_RATIO = 1000.0
# What NumPy raises for a damaged header, which is a Python literal.
_HEADER_ERRORS = (
    ValueError,
    SyntaxError,
    EOFError,
    TypeError,
    LookupError,
    RecursionError,
    MemoryError,
    OverflowError,
    struct.error,
    tokenize.TokenError,
)


def parse_llff(root: Path, downscale: int) -> Parsed:
    """Reads `poses_bounds.npy` and pairs its rows with the images in the order of their names."""
    parsed = Parsed(root, "llff", "poses_bounds.npy")
    rows = _read_rows(root / parsed.source, parsed)
    if rows is None:
        return parsed
    chosen = choose_images(root, downscale, parsed)
    if len(chosen) != len(rows):
        what = (
            f"holds {len(rows)} poses for {len(chosen)} images; the two are matched by order, so none can be trusted."
        )
        fix = "Restore the missing images or remove the surplus ones, so that the counts agree."
        parsed.error(parsed.source, what, fix, "count")
        return parsed
    bounded = _bounds_are_real(rows[:, 15:], parsed)
    for i, (row, image) in enumerate(zip(rows, chosen, strict=True)):
        matrix = row[:15].reshape(3, 5)
        name = image.relative_to(root).as_posix()
        where = f"{parsed.source} row {i} ({name})"
        height, width, focal = matrix[:, 4]
        if not (np.isfinite(focal) and 1 <= height <= MOST_PIXELS and 1 <= width <= MOST_PIXELS):
            what = f"states the camera height {height:g}, width {width:g}, focal length {focal:g}."
            parsed.error(where, what, "The fifth column of each matrix is (height, width, focal length).", "intrinsics")
            continue
        near, far = (float(row[15]), float(row[16])) if bounded else (None, None)
        intrinsics = Intrinsics(width=round(width), height=round(height), fx=float(focal), fy=float(focal))
        pose = from_llff(matrix[:, :4])
        parsed.frames.append(RawFrame(name, where, image, intrinsics, pose, near=near, far=far))
    return parsed


def _read_rows(path: Path, parsed: Parsed) -> np.ndarray | None:
    """The array [n, 17] in the file. If there is none, records a problem and returns None."""
    fix = "The file holds one row of 17 numbers per image. Write it again with LLFF's imgs2poses."
    try:
        rows = _parse_array(read_file(path))
    except UnreadableFile as error:
        parsed.error(path.name, error.what, fix, "poses-file")
        return None
    if rows.ndim != 2 or rows.shape[1] != 17 or not len(rows):
        parsed.error(path.name, f"has shape {list(rows.shape)}, not [images, 17].", fix, "poses-file")
        return None
    return rows.astype(np.float64)


def _parse_array(data: bytes) -> np.ndarray:
    """The numbers in an .npy file. Raises `UnreadableFile`. Nothing is unpickled.

    `np.load` would allocate whatever shape the header states, before it sees how short the file is.
    """
    file = io.BytesIO(data)
    try:
        with warnings.catch_warnings():
            # NumPy warns of headers by Python 2, which it reads all the same.
            warnings.simplefilter("ignore")
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, by_columns, kind = read(file)
    except _HEADER_ERRORS as error:
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnreadableFile(f"cannot be read as a NumPy array: {words[:100]}.") from error
    if kind.kind not in "fiu":
        raise UnreadableFile(f"holds values of type {kind}, not numbers.")
    rest, needed = len(data) - file.tell(), math.prod(shape) * kind.itemsize
    if rest != needed:
        raise UnreadableFile(f"is cut short or damaged: shape {list(shape)} needs {needed} bytes, and {rest} follow.")
    return np.frombuffer(data, kind, offset=file.tell()).reshape(shape, order="F" if by_columns else "C")


def _bounds_are_real(bounds: np.ndarray, parsed: Parsed) -> bool:
    """Whether the depth bounds can be used. Tools without scene points write the same wide range for every image."""
    near, far = bounds[:, 0], bounds[:, 1]
    if not (np.isfinite(bounds).all() and (near > 0).all() and (far > near).all()):
        fix = "Each row ends with the nearest and the farthest depth, 0 < near < far."
        parsed.warn(parsed.source, "has depth bounds that make no sense; they are ignored.", fix, "bounds")
        return False
    if (np.ptp(bounds, axis=0) == 0).all() and len(bounds) > 1 and far[0] / near[0] >= _PLACEHOLDER_RATIO:
        parsed.decisions.append(
            f"Depths: every image states the same range {near[0]:g} to {far[0]:g}, which is a placeholder; ignored."
        )
        return False
    return True

"""LLFF and Mip-NeRF 360 scenes: `poses_bounds.npy` and a folder of images in the same order.

Each row of the file is a [3, 5] matrix and two depths. The matrix is camera-to-world with columns [down, right, back,
centre]. Its fifth column is (height, width, focal length) of the full-size camera. The images may be smaller; the
camera is then scaled to them, x and y separately. The principal point is the image centre.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raymine.cameras import from_llff
from raymine.scenes.parsed import Intrinsics, Parsed, RawFrame

from .folders import choose_images

_PLACEHOLDER_RATIO = 1000.0


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
        if not (np.isfinite(matrix[:, 4]).all() and height >= 1 and width >= 1):
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
        rows = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        parsed.error(path.name, f"cannot be read as a NumPy array: {error}.", fix, "poses-file")
        return None
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != 17 or not len(rows):
        shape = list(rows.shape) if isinstance(rows, np.ndarray) else "of an archive"
        parsed.error(path.name, f"has shape {shape}, not [images, 17].", fix, "poses-file")
        return None
    return rows.astype(np.float64)


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

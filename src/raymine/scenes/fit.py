"""Fits the cameras of a scene file to the actual images.

Images may have been resized since the cameras were computed, may have an EXIF orientation, and may be missing. Missing
images are left out. If all images of a camera were resized, its intrinsics are scaled, x and y separately. Images of
different sizes under one camera are an error, because at least one of them must be wrong.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from raymine.cameras import turn_clockwise
from raymine.contracts import Camera
from raymine.files import UnreadableFile
from raymine.quantities import listing

from .images import ImageHeader, read_header
from .parsed import Intrinsics, Parsed, RawFrame
from .problems import Problem, Severity

_SAME_ASPECT = 0.02
# Clockwise quarter turns that make an image upright, for the EXIF orientations that are rotations without a mirror.
_TURNS = {1: 0, 6: 1, 3: 2, 8: 3}


@dataclass(frozen=True)
class Fitted:
    """A frame whose image exists. camera: in pixels of the upright image, divided by the downscale. pose: [3, 4]."""

    frame: RawFrame
    camera: Camera
    pose: np.ndarray
    header: ImageHeader


@dataclass(frozen=True)
class _Sized:
    """A frame with its header. turned: whether the camera of the file describes the image before EXIF rotation."""

    frame: RawFrame
    header: ImageHeader
    turned: bool

    @property
    def size(self) -> tuple[int, int]:
        return (self.header.width, self.header.height) if self.turned else self.header.shown


def fit_cameras(parsed: Parsed, frames: list[RawFrame], downscale: int) -> list[Fitted]:
    """The frames whose image exists and fits its camera, in order. Problems are recorded in `parsed`."""
    _report_missing(parsed, frames)
    groups: dict[Intrinsics, list[_Sized]] = defaultdict(list)
    for frame in frames:
        if frame.image is None:
            continue
        header = _header(parsed, frame)
        if header is not None and _has_focal(frame.intrinsics):
            groups[frame.intrinsics].append(_Sized(frame, header, _belongs_to_stored(parsed, frame, header)))
    resized: Counter[tuple[int, int, int, int]] = Counter()
    fitted = []
    for intrinsics, group in groups.items():
        _report_sizes(parsed, intrinsics, group, resized)
        fitted += [_fit(item, downscale // parsed.premade) for item in group]
    for (width, height, shown_width, shown_height), count in resized.items():
        parsed.decisions.append(
            f"Cameras: stated for {width}x{height}, {count} images are {shown_width}x{shown_height}; intrinsics scaled."
        )
    order = {id(frame): i for i, frame in enumerate(frames)}
    return sorted(fitted, key=lambda f: order[id(f.frame)])


def _report_missing(parsed: Parsed, frames: list[RawFrame]) -> None:
    missing = [f.name for f in frames if f.image is None]
    if not missing:
        return
    left = len(frames) - len(missing)
    if left:
        what = f"{len(missing)} of {len(frames)} frames have no image; training on the other {left}."
        fix = "Restore the images, or remove their frames."
    else:
        what = f"none of the {len(frames)} frames has an image; the first is {missing[0]}."
        fix = "Put the images where the file says, relative to the scene folder."
    severity: Severity = "warning" if left else "error"
    what = f"{what} Missing: {listing(missing, 20)}." if left else what
    parsed.problems.append(Problem(parsed.source, what, fix, severity, "missing-image", tuple(missing)))


def _header(parsed: Parsed, frame: RawFrame) -> ImageHeader | None:
    assert frame.image is not None
    try:
        return read_header(frame.image)
    except UnreadableFile as error:
        parsed.error(frame.name, error.what, "Restore the file from its source.", "unreadable-image")
        return None


def _has_focal(stated: Intrinsics) -> bool:
    """Whether a file states a focal length or an angle of view. If not, the reader has already reported it."""
    return any(v is not None for v in (stated.fx, stated.fy, stated.angle_x, stated.angle_y))


def _aspect_differs(size: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two sizes differ in aspect ratio by more than resizing and rounding to whole pixels can cause."""
    rounding = 1 / min(*size, *other)
    return abs(math.log(size[0] / size[1] * other[1] / other[0])) > _SAME_ASPECT + rounding


def _belongs_to_stored(parsed: Parsed, frame: RawFrame, header: ImageHeader) -> bool:
    """Whether the camera of the file describes the stored pixels, although EXIF asks for a rotation.

    Tools that ignore the EXIF orientation (such as COLMAP) compute poses for the stored pixels. The image size in the
    file shows which is meant, unless the image is square or upside down.
    """
    stated = frame.intrinsics
    if header.orientation == 1 or stated.width is None or stated.height is None:
        return False
    size, stored = (stated.width, stated.height), (header.width, header.height)
    fits_shown = not _aspect_differs(size, header.shown)
    fits_stored = not _aspect_differs(size, stored)
    if fits_stored and not fits_shown:
        if header.orientation in _TURNS:
            return True
        what = f"has the mirrored EXIF orientation {header.orientation}, and its camera belongs to the stored pixels."
        parsed.error(frame.name, what, "Write the image again without an EXIF orientation.", "orientation")
    elif fits_stored and fits_shown:
        what = f"has the EXIF orientation {header.orientation}; it is applied, and the pose is taken to expect that."
        parsed.warn(frame.name, what, "If results are bad, write the images without an orientation.", "orientation")
    return False


def _report_sizes(
    parsed: Parsed, stated: Intrinsics, group: list[_Sized], resized: Counter[tuple[int, int, int, int]]
) -> None:
    """Reports image sizes that differ from the camera.

    Different sizes under one camera are an error. If all images were resized, that is noted in `resized`; if their
    aspect ratio has changed, it is a warning.
    """
    sizes = Counter(item.size for item in group)
    usual = sizes.most_common(1)[0][0]
    if len(sizes) > 1:
        odd = [item for item in group if item.size != usual]
        names = [f"{item.frame.name} ({item.size[0]}x{item.size[1]})" for item in odd]
        what = (
            f"{len(odd)} of {len(group)} images under one camera differ in size from the others "
            f"({usual[0]}x{usual[1]}): {listing(names, 10)}."
        )
        fix = "Bring them to one size, or give them cameras of their own (`w`, `h` and `fl_x` per frame)."
        files = tuple(item.frame.name for item in odd)
        parsed.problems.append(Problem(parsed.source, what, fix, "error", "mixed-size", files))
    if stated.width is None or stated.height is None:
        return
    for size, count in sizes.items():
        if _aspect_differs((stated.width, stated.height), size):
            first = next(item.frame.name for item in group if item.size == size)
            what = (
                f"{count} images are {size[0]}x{size[1]} but their camera is for {stated.width}x{stated.height}, "
                f"another shape; the first is {first}. They are taken as squeezed, not cropped."
            )
            fix = "Restore the original images, or correct the stated size."
            parsed.warn(parsed.source, what, fix, "wrong-size")
        elif size != (stated.width, stated.height):
            resized[(stated.width, stated.height, *size)] += count


def _fit(item: _Sized, divide: int) -> Fitted:
    """The camera at the size of the image, rotated with it if needed, then downscaled by `divide`."""
    camera, pose = item.frame.intrinsics.camera(*item.size), item.frame.pose
    if item.turned:
        camera, pose = turn_clockwise(camera, pose, _TURNS[item.header.orientation])
    if divide > 1:
        camera = camera.resized(max(1, camera.width // divide), max(1, camera.height // divide))
    return Fitted(item.frame, camera, pose, item.header)

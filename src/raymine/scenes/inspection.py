"""Checks of single frames without their pixels: impossible cameras, and times out of range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raymine.cameras import field_of_view, lens_coverage
from raymine.contracts import Camera
from raymine.quantities import listing

from .fit import Fitted
from .parsed import Parsed, RawFrame
from .problems import Problem, Severity

WIDEST = 170.0
NARROWEST = 0.5
"""Largest and smallest plausible angle of view of a perspective camera, in degrees."""


def inspect_cameras(parsed: Parsed, fitted: Sequence[Fitted]) -> list[Fitted]:
    """The frames whose camera can be used. Problems of a shared camera are reported once, at its first frame."""
    found: dict[Camera, list[_Finding]] = {}
    frames: dict[_Finding, list[RawFrame]] = {}
    usable = []
    for item in fitted:
        if item.camera not in found:
            found[item.camera] = list(_findings(item.camera))
        findings = found[item.camera]
        for finding in findings:
            frames.setdefault(finding, []).append(item.frame)
        if all(finding.severity == "warning" for finding in findings):
            usable.append(item)
    for finding, concerned in frames.items():
        files = tuple(frame.name for frame in concerned)
        problem = Problem(concerned[0].where, finding.what, finding.fix, finding.severity, finding.kind, files)
        parsed.problems.append(problem)
    return usable


def inspect_times(parsed: Parsed, frames: Sequence[RawFrame]) -> None:
    """Reports times outside 0..1, and scenes in which only some frames have a time."""
    bad = [f.name for f in frames if f.time is not None and not 0 <= f.time <= 1]
    if bad:
        what = f"{len(bad)} frames have a `time` outside 0..1: {listing(bad)}."
        fix = "Divide the times by the length of the capture."
        parsed.problems.append(Problem(parsed.source, what, fix, "error", "time", tuple(bad)))
    without = [f.name for f in frames if f.time is None]
    if without and len(without) < len(frames):
        what = f"{len(without)} of {len(frames)} frames have no `time`: {listing(without)}."
        parsed.problems.append(
            Problem(parsed.source, what, "Give every frame a time or none.", "error", "time", tuple(without))
        )


@dataclass(frozen=True)
class _Finding:
    """A problem of a camera, as in `Problem`."""

    what: str
    fix: str
    severity: Severity
    kind: str


def _findings(camera: Camera) -> Iterator[_Finding]:
    fault = _fault(camera)
    if fault is not None:
        yield _Finding(*fault, "error", "intrinsics")
        return
    off_x, off_y = camera.cx / camera.width - 0.5, camera.cy / camera.height - 0.5
    if max(abs(off_x), abs(off_y)) > 0.5:
        what = f"the principal point ({camera.cx:.4g}, {camera.cy:.4g}) is outside the image."
        yield _Finding(what, "Check `cx` and `cy`; they are in pixels of the stated size.", "warning", "intrinsics")
    share = lens_coverage(camera)
    if share < 1:
        what = f"the lens distortion cannot be undone on {100 * (1 - share):.2g} % of the image, towards its corners."
        yield _Finding(what, "Check the distortion coefficients, or undistort the images first.", "warning", "lens")


def _fault(camera: Camera) -> tuple[str, str] | None:
    """Why a camera is impossible, and the fix; None if it is possible."""
    numbers = (camera.fx, camera.fy, camera.cx, camera.cy, *camera.distortion)
    if not all(math.isfinite(v) for v in numbers):
        return "the camera has numbers that are not finite.", "Check the focal lengths and coefficients."
    if camera.fx <= 0 or camera.fy <= 0:
        what = f"the focal length ({camera.fx:.4g}, {camera.fy:.4g}) is not positive."
        return what, "Focal lengths are positive, in pixels."
    wide, high = field_of_view(camera)
    widest = 360.0 if camera.model == "fisheye" else WIDEST
    if max(wide, high) > widest or min(wide, high) < NARROWEST:
        what = f"the angle of view, {wide:.3g} x {high:.3g} degrees, is absurd."
        return what, "Check the unit: `fl_x` is in pixels of the stated size, `camera_angle_x` in radians."
    off_x, off_y = camera.cx / camera.width - 0.5, camera.cy / camera.height - 0.5
    if max(abs(off_x), abs(off_y)) > 1:
        what = f"the principal point ({camera.cx:.4g}, {camera.cy:.4g}) is far outside the image."
        return what, "Check `cx` and `cy`; they are in pixels of the stated size."
    return None

"""Normalisation of a scene: its centre, orientation, scale and bounds.

The resolution of the field is highest inside the inner box (+-1): the finest occupancy level covers it, and everything
outside is contracted by the infinity norm. So the inner box should contain what the cameras look at, and the larger
boxes the background. The units of scene files are arbitrary (COLMAP's, for instance), so the cameras determine the
scale:

- centre: the point nearest to all optical axes. If the axes are nearly parallel (forward-facing captures), that point
  is not well defined; the centre is then in front of the cameras, at a depth between the nearest and farthest content,
  weighted in disparity. If the cameras look away from each other (panoramas), it is the median of the camera positions.
- up: the mean of the cameras' up axes, refined to the direction that is vertical in all images, becomes +z.
- scale: the median distance from camera to centre becomes 1. The subject then fits the inner box, and the cameras are
  near its faces.
- levels: the inner box is doubled until it contains the cameras and the known content, within the limits of the hints.
  Content farther than 16 units has so little parallax that a box at +-16 renders it as well (5 levels).
- near: a tenth of the distance to the subject, or less if content is known to be nearer.

Blender scenes are not changed: by convention the object fits +-1.5 around the origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from raymine.cameras import apply_similarity, similarity
from raymine.contracts import Bounds
from raymine.quantities import listing

from .fit import Fitted
from .parsed import Parsed
from .problems import Problem

Layout = Literal["inward", "forward", "outward"]

OBJECT_BOX = 1.5
FAR_FIELD_LEVELS = 5
_MOST_LEVELS = 7
_OUTLIER = 32.0
_NEARLY_PARALLEL = 0.02
_NEAR = 0.1
_ONE_PLACE = 1e-6
_LEAST_NEAR = 0.01


@dataclass(frozen=True)
class Placement:
    """Placement of a scene in source units: its centre [3], the distance that becomes 1, and the unit up vector [3]."""

    layout: Layout
    centre: np.ndarray
    distance: float
    up: np.ndarray


@dataclass(frozen=True)
class Normalised:
    """The similarity [4, 4] for every pose, the bounds in normalised units, and sentences that explain them."""

    matrix: np.ndarray
    bounds: Bounds
    sentences: tuple[str, ...]


def normalise(parsed: Parsed, fitted: Sequence[Fitted], transparent: bool) -> Normalised:
    """The normalisation of a scene. transparent: whether images have transparent pixels, so there is no background."""
    poses = np.stack([f.pose for f in fitted])
    if parsed.object_scene:
        return _object_scene(parsed, poses, transparent)
    near, far = _depth_range(fitted)
    place = find_placement(poses, near, far)
    matrix = similarity(_rotation_to_z(place.up), place.centre, 1.0 / place.distance)
    moved = apply_similarity(matrix, poses)
    reach = np.abs(moved[:, :, 3]).max(axis=1)
    _report_outliers(parsed, fitted, reach)
    levels, reason = _levels(parsed, fitted, moved, matrix, transparent)
    nearest = np.inf if near is None else near / place.distance
    clip = float(max(min(_NEAR, 0.8 * nearest), _LEAST_NEAR))
    outer = 2.0 ** (levels - 1)
    bounds = Bounds((-1.0,) * 3, (1.0,) * 3, levels, near=clip, far=float(4 * outer))
    centre = ", ".join(f"{v if abs(v) > 1e-6 * place.distance else 0.0:.3g}" for v in place.centre)
    words = {
        "inward": "the point the cameras look at",
        "forward": "a point in front of the nearly parallel cameras",
        "outward": "the middle of the cameras, which look outwards",
    }[place.layout]
    return Normalised(
        matrix,
        bounds,
        (
            f"Scale: centred at ({centre}), {words}; scaled by {1 / place.distance:.4g} so that the median camera "
            f"is 1 unit away; up is +z.",
            f"Bounds: inner box +-1, {levels} occupancy level{'s' if levels > 1 else ''} cover +-{outer:g} ({reason}); "
            f"near {clip:.3g}.",
        ),
    )


def find_placement(poses: np.ndarray, near: float | None = None, far: float | None = None) -> Placement:
    """Centre, unit of length and up direction of cameras with poses [n, 3, 4].

    near, far: depths of the nearest and farthest content in source units, if known.
    """
    origins, forward = poses[:, :, 3], -poses[:, :, 2]
    spread = float(np.median(np.linalg.norm(origins - np.median(origins, axis=0), axis=1)))
    up = _up(poses)
    point, spread_of_axes = meeting_point(origins, forward)
    ahead = np.einsum("nk,nk->n", point - origins, forward)
    if spread_of_axes >= _NEARLY_PARALLEL and np.median(ahead) > 0 and (ahead > 0).mean() >= 0.6:
        distance = float(np.median(np.linalg.norm(origins - point, axis=1)))
        return Placement("inward", point, max(distance, 1e-9), up)
    mean = forward.mean(axis=0)
    if np.linalg.norm(mean) > 0.5:
        mean = mean / np.linalg.norm(mean)
        depth = _forward_depth(near, far, spread, float(np.median(ahead)), spread_of_axes)
        return Placement("forward", origins.mean(axis=0) + depth * mean, depth, up)
    middle = np.median(origins, axis=0)
    reach = far if far is not None else 4 * spread
    return Placement("outward", middle, max(float(reach) / 2, 2 * spread, 1e-9), up)


def meeting_point(origins: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, float]:
    """The point [3] nearest to lines, given by origins and unit directions [n, 3], and how well it is determined.

    The second value is the mean squared sine of the angles between the lines and their principal direction. It is 0 for
    parallel lines, where the point is arbitrary along them, and 1/2 for a ring of cameras. Lines are reweighted by
    inverse distance, so that a few outliers have little influence on the point.
    """
    across = np.eye(3) - directions[:, :, None] * directions[:, None, :]
    weights = np.ones(len(origins))
    point = origins.mean(axis=0)
    spread = 0.0
    for i in range(10):
        a = np.einsum("n,nij->ij", weights, across) / weights.sum()
        b = np.einsum("n,nij,nj->i", weights, across, origins) / weights.sum()
        if i == 0:
            spread = float(max(np.linalg.eigvalsh(a)[0], 0.0))
        point = np.linalg.lstsq(a, b, rcond=1e-9)[0]
        misses = np.linalg.norm(np.einsum("nij,nj->ni", across, point - origins), axis=1)
        weights = 1.0 / np.maximum(misses, max(float(np.median(misses)), 1e-12))
    return point, spread


def _forward_depth(near: float | None, far: float | None, spread: float, meeting: float, axes: float) -> float:
    """Depth of the centre of a forward-facing scene.

    It is between near and far. Interpolating in disparity favours near content, which needs the resolution; weights of
    1/4 for near and 3/4 for far keep the far content inside the inner box too. Without near and far, it is the depth of
    the meeting point of the axes if that lies ahead, else ten times the spread of the cameras.
    """
    if near is not None and far is not None:
        return 1.0 / (0.25 / near + 0.75 / far)
    if meeting > 2 * spread and axes > 1e-4:
        return max(meeting, 1e-9)
    return max(10 * spread, 1e-9) if spread > 0 else 1.0


def _up(poses: np.ndarray) -> np.ndarray:
    """Unit up direction: the mean of the up axes, corrected if the images agree on a horizon.

    If all cameras look down, the mean is tilted. Cameras are usually held level, so the direction perpendicular to all
    right axes is better. It is used if those axes span a plane and it is within 40 degrees of the mean.
    """
    mean = poses[:, :, 1].mean(axis=0)
    if np.linalg.norm(mean) < 1e-3:
        return np.array([0.0, 0.0, 1.0])
    mean = mean / np.linalg.norm(mean)
    right = poses[:, :, 0]
    values, vectors = np.linalg.eigh(right.T @ right / len(right))
    level = vectors[:, 0] * np.sign(vectors[:, 0] @ mean or 1.0)
    settled = values[0] < 0.1 * values[1] and values[1] > 0.02
    return level if settled and level @ mean > np.cos(np.radians(40)) else mean


def _rotation_to_z(up: np.ndarray) -> np.ndarray:
    """The smallest rotation [3, 3] that takes `up` to +z."""
    x, y, z = up
    if z < -1 + 1e-9:
        return np.diag([1.0, -1.0, -1.0])
    v = np.array([[0.0, 0.0, -x], [0.0, 0.0, -y], [x, y, 0.0]])
    return np.eye(3) + v + v @ v / (1 + z)


def _depth_range(fitted: Sequence[Fitted]) -> tuple[float | None, float | None]:
    """Smallest near and median far over all frames that have them, else None. The median, as far is less reliable."""
    near = [f.frame.near for f in fitted if f.frame.near is not None]
    far = [f.frame.far for f in fitted if f.frame.far is not None]
    return (min(near) if near else None), (float(np.median(far)) if far else None)


def _levels(
    parsed: Parsed, fitted: Sequence[Fitted], moved: np.ndarray, matrix: np.ndarray, transparent: bool
) -> tuple[int, str]:
    """The number of nested boxes, and the reason in words. All cameras except reported outliers must be inside."""
    reach = np.abs(moved[:, :, 3]).max(axis=1)
    cameras = _levels_for(float(reach[reach <= _OUTLIER].max(initial=0.0)) * 1.01)
    if parsed.aabb_scale is not None:
        wanted, reason = 1 + round(np.log2(max(parsed.aabb_scale, 1.0))), f"aabb_scale {parsed.aabb_scale:g}"
    elif transparent:
        wanted, reason = 1, "images are transparent behind the subject"
    elif parsed.points is not None:
        points = parsed.points @ matrix[:3, :3].T + matrix[:3, 3]
        reach = float(np.quantile(np.abs(points).max(axis=1), 0.99))
        wanted, reason = min(_levels_for(reach), FAR_FIELD_LEVELS), f"99 % of the scene points are within {reach:.3g}"
    elif any(f.frame.far is not None for f in fitted):
        reach = _far_reach(fitted, moved, float(np.cbrt(np.linalg.det(matrix[:3, :3]))))
        wanted, reason = min(_levels_for(reach), FAR_FIELD_LEVELS), f"content reaches {reach:.3g}"
    else:
        wanted, reason = FAR_FIELD_LEVELS, "nothing says how far the scene reaches"
    if cameras > wanted:
        return min(cameras, _MOST_LEVELS), "the cameras need it"
    if wanted == 1 and not transparent and parsed.aabb_scale is None:
        return 2, "content is near, and one box more holds what nothing was measured on"
    return min(wanted, _MOST_LEVELS), reason


def _report_outliers(parsed: Parsed, fitted: Sequence[Fitted], reach: np.ndarray) -> None:
    """Reports cameras that are far from all others. A box around them would leave little resolution for the scene."""
    names = [f.frame.name for f, r in zip(fitted, reach, strict=True) if r > _OUTLIER]
    if names:
        what = (
            f"{len(names)} of {len(fitted)} cameras are more than {_OUTLIER:g} times as far from the scene as the "
            f"median camera: {listing(names)}."
        )
        fix = "Their poses are probably wrong: correct them or remove the frames."
        parsed.problems.append(Problem(parsed.source, what, fix, "warning", "outlier", tuple(names)))


def report_no_parallax(parsed: Parsed, trained: Sequence[Fitted]) -> None:
    """Reports training images from a single place: they agree with any depth, so none can be learnt."""
    if not trained or any(f.frame.time is not None for f in trained):
        return
    origins = np.stack([f.pose[:, 3] for f in trained])
    spread = float(np.linalg.norm(origins - origins[0], axis=1).max())
    size = max(float(np.abs(origins).max()), 1.0)
    if spread > _ONE_PLACE * size:
        return
    what = "there is one training image" if len(trained) == 1 else "all training cameras are in one place"
    fix = "Depth cannot be learnt without parallax: take photos from several places, or check the poses."
    problem = Problem(parsed.source, f"{what}, so nothing shows how far things are.", fix, "warning", "parallax")
    parsed.problems.append(problem)


def _levels_for(reach: float) -> int:
    return 1 + max(0, int(np.ceil(np.log2(max(reach, 1e-9)))))


def _far_reach(fitted: Sequence[Fitted], moved: np.ndarray, scale: float) -> float:
    """Median over frames of the distance (infinity norm) from the centre to the image corners at far depth."""
    reaches = []
    for item, pose in zip(fitted, moved, strict=True):
        if item.frame.far is None:
            continue
        c = item.camera
        half = np.array([min(c.width / (2 * c.fx), 1.5), min(c.height / (2 * c.fy), 1.5)])
        corners = np.array([[sx * half[0], sy * half[1], -1.0] for sx in (-1, 1) for sy in (-1, 1)])
        reaches.append(np.abs(pose[:, 3] + corners * item.frame.far * scale @ pose[:, :3].T).max())
    return float(np.median(reaches))


def _object_scene(parsed: Parsed, poses: np.ndarray, transparent: bool) -> Normalised:
    box = OBJECT_BOX
    levels = 1 if parsed.aabb_scale is None else 1 + round(np.log2(max(parsed.aabb_scale, 1.0)))
    reach = float(np.linalg.norm(poses[:, :, 3], axis=1).max())
    far = reach + 2 * np.sqrt(3) * box * 2.0 ** (levels - 1)
    bounds = Bounds((-box,) * 3, (box,) * 3, levels, near=0.05, far=float(np.ceil(far)))
    outer = box * 2.0 ** (levels - 1)
    sentences = [
        "Scale: poses as they are; by convention of the format the object fits +-1.5 around the origin.",
        f"Bounds: box +-{outer:g}; near {bounds.near:g}, far {bounds.far:g}.",
    ]
    if not transparent:
        sentences.append(
            "Background: the images are opaque, so what lies outside +-1.5 cannot be learnt. For photographs of a "
            "real place, put the frames into one transforms.json instead."
        )
    return Normalised(np.eye(4), bounds, tuple(sentences))

"""Checks that compare frames with each other and with the bounds of the scene."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch

from raymine.cameras import camera_directions, pose_fault
from raymine.contracts import Camera, Scene
from raymine.quantities import listing
from raymine.scenes.load import Assembly
from raymine.scenes.parsed import Parsed
from raymine.scenes.problems import Problem

_PROBES = 9


def check_duplicates(parsed: Parsed) -> list[Problem]:
    """Finds images that several frames use, and frames with the same pose and time."""
    by_image: dict[object, list[str]] = defaultdict(list)
    by_pose: dict[tuple, list[str]] = defaultdict(list)
    sound = [f for f in parsed.frames if pose_fault(f.pose) is None]
    centres = np.array([f.pose[:, 3] for f in sound]).reshape(-1, 3)
    unit = 1e-6 * max(float(np.abs(centres).max(initial=0.0)), 1e-6)
    for frame in parsed.frames:
        if frame.image is not None:
            by_image[frame.image].append(frame.where)
    for frame in sound:
        place = (*np.round(frame.pose[:, 3] / unit), *np.round(frame.pose[:, :3].reshape(-1) * 1e5), frame.time)
        by_pose[place].append(frame.name)
    problems = []
    for wheres in by_image.values():
        if len(wheres) > 1:
            what = f"the same image is also used by {listing(wheres[1:])}."
            problems.append(Problem(wheres[0], what, "Remove all but one frame.", "warning", "duplicate-frame"))
    for names in by_pose.values():
        if len(set(names)) > 1:
            what = f"has the same pose as {listing(names[1:])}."
            fix = "Two photos are hardly ever taken from one spot: check the poses."
            problems.append(Problem(names[0], what, fix, "warning", "duplicate-pose", tuple(names)))
    return problems


def check_views(assembly: Assembly) -> list[Problem]:
    """Finds cameras that are too close to the content, and cameras whose view misses the scene."""
    scene = assembly.scene
    assert scene is not None
    scale = float(np.cbrt(np.linalg.det(scene.normalisation[:3, :3])))
    outer = np.array([scene.bounds.low, scene.bounds.high]) * 2.0 ** (scene.bounds.levels - 1)
    inside, past = [], []
    for frame, item in zip(scene.frames, assembly.fitted, strict=True):
        known = None if item.frame.near is None else item.frame.near * scale
        if _content_distance(scene, frame.pose, known) < scene.bounds.near:
            inside.append(item.frame.name)
        if not _meets_box(item.camera, frame.pose, outer):
            past.append(item.frame.name)
    problems = []
    for names, kind, what in (
        (inside, "near-plane", f"content may be nearer than the near plane ({scene.bounds.near:.3g}) and be cut off"),
        (past, "view-misses-scene", f"the view never meets the scene, which should lie within +-{outer[1][0]:g}"),
    ):
        if names:
            what = f"in {len(names)} of {len(scene.frames)} frames {what}: {listing(names)}."
            fix = "Check their poses and the scale of the scene; remove frames that do not belong."
            problems.append(Problem(assembly.parsed.source, what, fix, "warning", kind, tuple(names)))
    return problems


def _content_distance(scene: Scene, pose: np.ndarray, known: float | None) -> float:
    """Distance from a camera to the nearest content, in world units.

    known: the value from the files. Without it, the distance to the box (bounded scenes) or to the centre (unbounded).
    """
    if known is not None:
        return known
    centre = pose[:, 3]
    if scene.bounds.unbounded:
        return float(np.linalg.norm(centre))
    low, high = np.array(scene.bounds.low), np.array(scene.bounds.high)
    return float(np.linalg.norm(np.maximum(np.maximum(low - centre, centre - high), 0.0)))


def _meets_box(camera: Camera, pose: np.ndarray, box: np.ndarray) -> bool:
    """Whether any ray of a grid over the image hits the box [2, 3] in front of the camera."""
    x = torch.linspace(0, camera.width, _PROBES, dtype=torch.float64)
    y = torch.linspace(0, camera.height, _PROBES, dtype=torch.float64)
    yy, xx = torch.meshgrid(y, x, indexing="ij")
    local = camera_directions(camera, xx.reshape(-1), yy.reshape(-1)).numpy()
    directions = local @ pose[:, :3].T
    safe = np.where(np.abs(directions) < 1e-12, 1e-12, directions)
    near, far = (box[0] - pose[:, 3]) / safe, (box[1] - pose[:, 3]) / safe
    enter = np.minimum(near, far).max(axis=1)
    leave = np.maximum(near, far).min(axis=1)
    return bool((leave > np.maximum(enter, 0.0)).any())

"""Compare two sets of poses that differ by an overall similarity. All in NumPy and float64.

Photos alone do not tell where the world has its origin, its axes and its unit of length. Poses that were refined from
photos are therefore compared with others after the similarity that fits them best has been applied.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .poses import apply_similarity, similarity

_ONE_PLACE = 1e-9
"""Camera centres whose spread is below this share of their distance from the origin do not determine a scale."""


def align_poses(poses: np.ndarray, onto: np.ndarray) -> np.ndarray:
    """The similarity [4, 4] that takes `poses` [I, 3, 4] closest to `onto` [I, 3, 4].

    The rotation minimises the squared distances of centres, relative to their mean spread, plus those of the camera
    axes. So it is determined for cameras on a line, in one place, and for a single camera. The scale and the
    translation follow from the centres; the scale is 1 where all centres coincide.
    """
    centres, targets = poses[:, :, 3], onto[:, :, 3]
    middle, aim = centres.mean(0), targets.mean(0)
    a, b = centres - middle, targets - aim
    spread, wanted = np.sqrt((a * a).sum(1).mean()), np.sqrt((b * b).sum(1).mean())
    tiny = _ONE_PLACE * max(1.0, float(np.abs(centres).max()), float(np.abs(targets).max()))
    correlation = np.einsum("nij,nkj->ik", onto[:, :, :3], poses[:, :, :3])
    if min(spread, wanted) > tiny:
        correlation = correlation + b.T @ a / (spread * wanted)
    u, _, vt = np.linalg.svd(correlation)
    turn = u @ np.diag([1.0, 1.0, np.linalg.det(u @ vt)]) @ vt
    scale = float((b * (a @ turn.T)).sum() / (a * a).sum()) if min(spread, wanted) > tiny else 1.0
    # Centres that are unrelated could give a scale of 0 or below, which is no similarity.
    scale = scale if scale > 0 else 1.0
    found = similarity(turn, middle, scale)
    found[:3, 3] += aim
    return found


class PoseErrors(NamedTuple):
    """degrees [I]: angles between the rotations. distance [I]: between the centres, in the units of the truth."""

    degrees: np.ndarray
    distance: np.ndarray


def pose_errors(poses: np.ndarray, truth: np.ndarray) -> PoseErrors:
    """Errors of `poses` [I, 3, 4] against `truth` [I, 3, 4], after the similarity of `align_poses`."""
    aligned = apply_similarity(align_poses(poses, truth), poses)
    return PoseErrors(rotation_degrees(aligned, truth), np.linalg.norm(aligned[:, :, 3] - truth[:, :, 3], axis=1))


def rotation_degrees(poses: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Angles [I] in degrees between the rotations of poses [I, 3, 4]. Precise for small angles too."""
    # |R - Q|^2 = 8 sin^2(angle / 2), in which nothing cancels near 0.
    size = np.linalg.norm(poses[:, :, :3] - others[:, :, :3], axis=(1, 2))
    return np.degrees(2 * np.arcsin(np.clip(size / np.sqrt(8.0), 0.0, 1.0)))

"""Smooth curves through key poses.

Poses are camera-to-world [k, 3, 4]. The n views of a curve are evenly spaced in key index, so the camera moves slowly
between keys that are close together.
"""

from __future__ import annotations

import math

import numpy as np

from raymine.cameras import matrix_to_quaternion, quaternion_to_matrix
from raymine.errors import ConfigError, option

MOST_VIEWS = 100_000
"""Longest camera path: 55 minutes of video."""


def require_views(n: int) -> None:
    """Raise `ConfigError` for a camera path without views, or with more than `MOST_VIEWS`."""
    if not 1 <= n <= MOST_VIEWS:
        raise ConfigError(f"{option('frames')} must be between 1 and {MOST_VIEWS}, got {n}.")


def interpolate_poses(poses: np.ndarray, n: int, *, closed: bool = False) -> np.ndarray:
    """A smooth curve through key poses [k, 3, 4] -> [n, 3, 4], evenly spaced in key index.

    Positions follow a Catmull-Rom spline (through every key, continuous velocity), orientations the shorter arc
    between neighbouring keys. An open path starts at the first key and ends at the last; a `closed` one leads from
    the last key back to the first without repeating it.
    """
    keys = np.asarray(poses, dtype=np.float64)
    if keys.ndim != 3 or keys.shape[1:] != (3, 4) or len(keys) == 0:
        raise ValueError(f"`poses` must have shape [k, 3, 4] with k >= 1, got {keys.shape}.")
    k = len(keys)
    segment, u = _key_positions(k, n, closed)
    at = [_neighbour(segment + shift, k, closed) for shift in (-1, 0, 1, 2)]
    p = keys[:, :, 3]
    positions = _catmull_rom(p[at[0]], p[at[1]], p[at[2]], p[at[3]], u[:, None])
    quaternions = np.stack([matrix_to_quaternion(key[:, :3]) for key in keys])
    rotations = np.stack([_slerp(quaternions[i], quaternions[j], t) for i, j, t in zip(at[1], at[2], u, strict=True)])
    return np.concatenate([rotations, positions[:, :, None]], axis=2)


def interpolate_values(values: np.ndarray, n: int, *, closed: bool = False) -> np.ndarray:
    """Values [k] of the key poses (field of view, time) -> [n] at the views of the curve, linear between keys."""
    k = len(values)
    segment, u = _key_positions(k, n, closed)
    start, stop = _neighbour(segment, k, closed), _neighbour(segment + 1, k, closed)
    return values[start] * (1.0 - u) + values[stop] * u


def _key_positions(k: int, n: int, closed: bool) -> tuple[np.ndarray, np.ndarray]:
    """For n views over k keys: the key before each view [n], and the fraction [n] in 0..1 to the next key."""
    require_views(n)
    s = np.arange(n) / n * k if closed else np.linspace(0.0, k - 1.0, n)
    segment = np.minimum(np.floor(s).astype(np.int64), k - 1 if closed else max(k - 2, 0))
    return segment, s - segment


def _neighbour(index: np.ndarray, k: int, closed: bool) -> np.ndarray:
    return index % k if closed else np.clip(index, 0, k - 1)


def _catmull_rom(p0: np.ndarray, p1: np.ndarray, p2: np.ndarray, p3: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The cubic from p1 (u = 0) to p2 (u = 1) with the velocities (p2 - p0) / 2 and (p3 - p1) / 2 there."""
    enter, leave = 0.5 * (p2 - p0), 0.5 * (p3 - p1)
    step = p2 - p1
    return p1 + u * (enter + u * (3.0 * step - 2.0 * enter - leave + u * (enter + leave - 2.0 * step)))


def _slerp(start: np.ndarray, stop: np.ndarray, u: float) -> np.ndarray:
    """The rotation [3, 3] at fraction `u` of the shorter arc between two unit quaternions."""
    cosine = float(start @ stop)
    if cosine < 0.0:
        stop, cosine = -stop, -cosine
    angle = math.acos(min(cosine, 1.0))
    if angle < 1e-6:
        q = start
    else:
        q = (math.sin((1.0 - u) * angle) * start + math.sin(u * angle) * stop) / math.sin(angle)
    return quaternion_to_matrix(q)

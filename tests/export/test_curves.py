"""Interpolated poses: smooth, through the key poses, along the shorter rotation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from raymine.errors import ConfigError
from raymine.export import interpolate_poses
from support.novel_views import assert_rigid, ring


def test_interpolation_is_smooth_and_passes_through_the_key_poses() -> None:
    keys = np.stack(ring(np.zeros(3), 2.0, 0.3, np.array([0.0, 0.7, 1.9, 2.4])))
    curve = interpolate_poses(keys, 301)
    assert_rigid(curve)
    assert np.allclose(curve[::100], keys)
    velocity = np.diff(curve[:, :, 3], axis=0)
    assert np.linalg.norm(np.diff(velocity, axis=0), axis=1).max() < 1e-3, "the curve has a corner"


def test_interpolation_rotates_along_the_shorter_arc() -> None:
    def turned(angle: float) -> np.ndarray:
        c, s = math.cos(angle), math.sin(angle)
        return np.array([[c, -s, 0.0, 0.0], [s, c, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])

    middle = interpolate_poses(np.stack([turned(math.radians(170)), turned(math.radians(-170))]), 3)[1]
    assert np.allclose(middle, turned(math.pi))


def test_interpolation_of_closed_paths_single_poses_and_single_frames() -> None:
    keys = np.stack(ring(np.zeros(3), 2.0, 0.3, np.array([0.0, 2.0, 4.0])))
    closed = interpolate_poses(keys, 6, closed=True)
    assert np.allclose(closed[::2], keys)
    assert np.allclose(interpolate_poses(keys[:1], 4), keys[:1].repeat(4, axis=0))
    assert np.allclose(interpolate_poses(keys, 1)[0], keys[0])
    with pytest.raises(ConfigError, match="must be between 1 and 100000, got 0"):
        interpolate_poses(keys, 0)

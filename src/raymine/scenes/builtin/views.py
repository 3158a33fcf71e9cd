"""Where the cameras of the built-in scene stand."""

from __future__ import annotations

import math

import numpy as np

RADIUS = 4.0
FIELD_OF_VIEW = 0.6911  # horizontal, in radians


def look_at_centre(azimuth: float, elevation: float) -> np.ndarray:
    """[4, 4] camera-to-world pose (x right, y up, z backward) on the sphere, looking at the origin; angles in radians.

    World z is up.
    """
    back = np.array(
        [math.cos(elevation) * math.cos(azimuth), math.cos(elevation) * math.sin(azimuth), math.sin(elevation)]
    )
    right = np.array([-math.sin(azimuth), math.cos(azimuth), 0.0])
    pose = np.eye(4)
    pose[:3, 0], pose[:3, 1], pose[:3, 2], pose[:3, 3] = right, np.cross(back, right), back, RADIUS * back
    return pose


def train_poses(count: int) -> np.ndarray:
    """[count, 4, 4]: a golden-angle spiral, even over the sphere from 10 degrees below the plate to 75 above."""
    low, high = math.sin(math.radians(-10.0)), math.sin(math.radians(75.0))
    golden = math.pi * (3.0 - math.sqrt(5.0))
    heights = [low + (high - low) * (i + 0.5) / count for i in range(count)]
    return np.stack([look_at_centre(golden * i, math.asin(h)) for i, h in enumerate(heights)])


def test_poses(count: int) -> np.ndarray:
    """[count, 4, 4]: even steps around the scene, rising and falling between 5 and 60 degrees."""
    middle, swing = math.radians(32.5), math.radians(27.5)
    turns = [(i + 0.37) * 2.0 * math.pi / count for i in range(count)]
    return np.stack([look_at_centre(a, middle + swing * math.sin(2.4 * i)) for i, a in enumerate(turns)])

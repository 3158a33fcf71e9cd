"""Cameras of every model, and random poses."""

from __future__ import annotations

import numpy as np

from raymine.cameras import look_at
from raymine.contracts import Camera

PINHOLE = Camera(64, 48, 70.0, 68.0, 30.0, 25.0)
OPENCV = Camera(640, 480, 500.0, 510.0, 322.0, 236.0, "opencv", (-0.28, 0.09, 0.0012, -0.0017, -0.01))
FISHEYE = Camera(600, 600, 190.0, 191.0, 302.0, 297.0, "fisheye", (0.031, -0.012, 0.004, -0.0004))


def random_pose(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return look_at(rng.normal(size=3) * 3, rng.normal(size=3), rng.normal(size=3))

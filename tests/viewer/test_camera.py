"""Cameras of viser and of raymine."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raymine.cameras import look_at, unproject
from raymine.viewer.camera import camera_of, orientation_of, pose_of, vertical_fov


def test_pose_survives_the_way_to_viser_and_back() -> None:
    pose = look_at((3.0, -2.0, 1.0), (0.1, 0.2, 0.3))
    wxyz, position = orientation_of(pose)
    np.testing.assert_allclose(pose_of(wxyz, position), pose, atol=1e-12)


def test_viser_looks_along_plus_z_and_down_is_plus_y() -> None:
    pose = pose_of(np.array([1.0, 0.0, 0.0, 0.0]), np.array([0.0, 0.0, 5.0]))
    np.testing.assert_allclose(-pose[:, 2], (0, 0, 1))
    np.testing.assert_allclose(-pose[:, 1], (0, 1, 0))


def test_field_of_view_is_vertical_and_kept_at_any_size() -> None:
    seen = SimpleNamespace(fov=1.0)
    for size in ((40, 30), (400, 300)):
        camera = camera_of(seen, *size)
        assert vertical_fov(camera) == pytest.approx(1.0)
        top = unproject(camera, np.eye(4)[:3], torch.tensor([[size[0] / 2, 0.0]]), torch.ones(1))
        assert math.atan2(float(top[0, 1]), -float(top[0, 2])) == pytest.approx(0.5, abs=1e-5)

"""The normalised world and that of the scene's files: known values, round trips, wrong shapes."""

from __future__ import annotations

import numpy as np
import pytest

from raymine.cameras import from_normalised, similarity, to_normalised
from raymine.errors import ConfigError
from support.cameras import random_pose
from support.novel_views import make_scene

TURN = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
SCENE = make_scene([np.eye(3, 4)], normalisation=similarity(TURN, np.array([1.0, 2.0, 3.0]), 0.5))


def test_points_and_poses_are_centred_turned_and_scaled() -> None:
    assert np.allclose(to_normalised(SCENE, [1.0, 2.0, 3.0]), 0.0)
    assert np.allclose(to_normalised(SCENE, [[3.0, 2.0, 3.0], [1.0, 2.0, 7.0]]), [[0.0, 1.0, 0.0], [0.0, 0.0, 2.0]])
    pose = to_normalised(SCENE, np.array([[1, 0, 0, 3], [0, 1, 0, 2], [0, 0, 1, 3]]))
    assert np.allclose(pose[:, :3], TURN)
    assert np.allclose(pose[:, 3], [0.0, 1.0, 0.0])
    assert SCENE.scale == pytest.approx(0.5)


@pytest.mark.parametrize("shape", ["pose", "square", "several", "points"])
def test_worlds_round_trip_and_keep_the_shape(shape: str) -> None:
    pose = random_pose(4)
    square = np.vstack([pose, [0.0, 0.0, 0.0, 1.0]])
    values = {"pose": pose, "square": square, "several": np.stack([pose, pose]), "points": pose[:, 3][None]}[shape]
    there = to_normalised(SCENE, values.tolist())
    assert there.shape == values.shape
    assert not np.allclose(there, values)
    np.testing.assert_allclose(from_normalised(SCENE, there), values, atol=1e-12)


@pytest.mark.parametrize("values", [np.eye(2), np.zeros((3, 5)), 1.0, np.zeros((4,))])
def test_other_shapes_are_refused(values: object) -> None:
    with pytest.raises(ConfigError, match=r"shape \[..., 3, 4\] or \[..., 4, 4\], and points \[..., 3\], got"):
        to_normalised(SCENE, values)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be arrays of numbers"):
        from_normalised(SCENE, "x")

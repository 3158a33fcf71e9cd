"""Alignment of two sets of poses by a similarity, and the errors that are left."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raymine.cameras import align_poses, apply_similarity, exp_se3, pose_errors, similarity
from support.novel_views import ring

TURN = exp_se3(torch.tensor([[0.4, -0.3, 0.8, 0, 0, 0]], dtype=torch.float64))[0, :, :3].numpy()
WORLD = similarity(TURN, np.array([0.3, -0.2, 1.0]), 1.7)
AROUND = np.stack(ring(np.zeros(3), 4.0, 0.4, np.arange(7) * 0.8))
ON_A_LINE = AROUND.copy()
ON_A_LINE[:, :, 3] = np.arange(7)[:, None] * np.array([1.0, 0.5, 0.0])
IN_ONE_PLACE = AROUND.copy()
IN_ONE_PLACE[:, :, 3] = 2.0


@pytest.mark.parametrize("poses", [AROUND, ON_A_LINE], ids=["around", "line"])
def test_similarity_between_worlds_is_found(poses: np.ndarray) -> None:
    assert np.allclose(align_poses(poses, apply_similarity(WORLD, poses)), WORLD, atol=1e-9)


@pytest.mark.parametrize("poses", [AROUND, ON_A_LINE, IN_ONE_PLACE, AROUND[:1]])
def test_no_error_is_left_between_worlds(poses: np.ndarray) -> None:
    found = pose_errors(apply_similarity(WORLD, poses), poses)
    assert found.degrees.max() < 1e-5
    assert found.distance.max() < 1e-9


def test_errors_of_single_cameras_are_measured() -> None:
    """One camera of seven is off: the alignment takes a little of its error, the rest stays."""
    wrong = AROUND.copy()
    motion = exp_se3(torch.tensor([[0.0, np.radians(2.0), 0, 0, 0, 0]], dtype=torch.float64))[0].numpy()
    wrong[2, :, :3] = motion[:, :3] @ wrong[2, :, :3]
    wrong[5, 0, 3] += 0.1
    found = pose_errors(apply_similarity(WORLD, wrong), AROUND)
    assert found.degrees[2] == pytest.approx(2.0, rel=0.2)
    assert np.delete(found.degrees, 2).max() < 0.4
    assert found.distance[5] == pytest.approx(0.1, rel=0.3)

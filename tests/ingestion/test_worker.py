"""The last adjustment of a model: which points vote on poses, and what wrong matches of few photos do to them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from raymine.cameras import pose_errors
from raymine.ingestion import worker


class _Model:
    """Points by number, each seen by some photos, with the interface of `pycolmap.Reconstruction`."""

    def __init__(self, seen: Sequence[Sequence[int]]) -> None:
        self.points3D = {
            number: SimpleNamespace(track=SimpleNamespace(elements=[SimpleNamespace(image_id=i) for i in images]))
            for number, images in enumerate(seen)
        }

    def delete_point3D(self, number: int) -> None:
        del self.points3D[number]


def test_short_tracks_go_where_their_photos_have_enough_long_ones() -> None:
    long = [[1, 2, 3, 4]] * worker._ENOUGH_POINTS
    model = _Model([*long, [1, 2], [3, 4, 2], [4, 5], [5, 6, 7]])
    worker._drop_short_tracks(model)
    # Photos 5, 6 and 7 have nothing else.
    assert sorted(model.points3D) == [*range(worker._ENOUGH_POINTS), len(long) + 2, len(long) + 3]


def test_without_long_tracks_all_points_stay() -> None:
    model = _Model([[1, 2], [2, 3, 4]])
    worker._drop_short_tracks(model)
    assert len(model.points3D) == 2


def test_adjustment_undoes_a_wrong_pose_and_leaves_true_points() -> None:
    pycolmap = pytest.importorskip("pycolmap")
    pycolmap.set_random_seed(0)
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig, options.num_points3D = 1, 1, 12, 400
    model = pycolmap.synthesize_dataset(options)
    truth = _poses(model)
    first = model.image(min(model.reg_image_ids()))
    moved = first.cam_from_world()
    moved.translation = moved.translation + np.array([0.05, 0.0, 0.0])
    first.frame.set_cam_from_world(first.camera_id, moved)
    assert _distances(_poses(model), truth).max() > 0.04
    worker._refine(model, 1.0, 1)
    assert model.num_reg_images() == 12
    assert _distances(_poses(model), truth).max() < 1e-3


def _poses(model: worker.Any) -> np.ndarray:
    """[n, 3, 4] camera-to-world."""
    numbers = sorted(model.reg_image_ids())
    return np.stack([model.image(number).cam_from_world().inverse().matrix() for number in numbers])


def _distances(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Of camera centres after alignment, in units of the true model."""
    return np.asarray(pose_errors(found, truth).distance)

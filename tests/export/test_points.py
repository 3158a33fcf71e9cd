"""Point clouds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raymine.errors import ConfigError
from raymine.export.model import Placement
from raymine.export.points import PointsConfig, make_points, read_points, write_points
from raymine.export.splats.place import trace_views
from support.export_models import RADIUS, TURNED, ball_model


def test_points_lie_on_the_surface_with_normals_in_the_users_world(tmp_path: Path) -> None:
    model = ball_model(TURNED)
    points = make_points(model, trace_views(model, None, 9, 30)[1], 400)
    assert 100 < len(points.points) <= 400
    placement = Placement.of(model.scene, "scene")
    write_points(tmp_path / "a.ply", points, placement)
    back = read_points(tmp_path / "a.ply")
    centre = placement.points(np.zeros((1, 3)))
    outwards = back.points - centre
    radius = np.linalg.norm(outwards, axis=1)
    assert np.abs(radius - RADIUS / 2).max() < 0.05
    assert ((back.normals * outwards).sum(1) / radius).mean() > 0.97
    assert np.abs(back.colours - points.colours).max() < 0.003


def test_impossible_count_is_refused() -> None:
    with pytest.raises(ConfigError, match="`count` must be between 1"):
        PointsConfig(count=0)

"""What exporters see of a model: traced rays, occupied cells, boxes and placements."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raymine.errors import ConfigError
from raymine.export.model import Placement, box_of
from support.export_models import RADIUS, TURNED, ball_model, cameras


def test_traced_rays_hit_the_surface_and_normals_point_outwards() -> None:
    model = ball_model()
    camera, rays = model.view_rays(0, 40)
    hits = model.trace(rays, 3 / camera.fx)
    solid = hits.opacity > 0.9
    assert 50 < int(solid.sum()) < len(rays) / 2
    assert float((hits.points[solid].norm(dim=1) - RADIUS).abs().max()) < 0.06
    assert float(hits.depth[hits.opacity == 0].abs().sum()) == 0
    outwards = torch.nn.functional.normalize(hits.points[solid], dim=1)
    assert float((model.normals(hits.points[solid], 0.01) * outwards).sum(1).min()) > 0.99


def test_views_are_shrunk_and_enlarged_where_asked() -> None:
    model = ball_model()
    sizes = [model.view_rays(0, longest, enlarge=grow)[0] for longest, grow in ((20, False), (80, False), (80, True))]
    assert [(camera.width, camera.height) for camera in sizes] == [(20, 15), (40, 30), (80, 60)]
    assert sizes[2].fx / sizes[1].fx == 2


def test_occupied_follows_the_grid_of_the_sampler() -> None:
    model = ball_model()
    sampler = model.sampler
    cell = 3.0 / 32
    point = torch.tensor([[0.5 * cell, 1.5 * cell, -2.5 * cell]])
    outside = torch.tensor([[1.6, 0.0, 0.0]])
    assert model.occupied(torch.cat((point, outside))).tolist() == [True, False]
    sampler.swept = True  # type: ignore[attr-defined]
    sampler.values[0, (16 * 32 + 17) * 32 + 13] = 1.0  # type: ignore[attr-defined]
    assert model.occupied(torch.cat((point, point + cell))).tolist() == [True, False]


def test_box_of_the_users_world_is_the_same_region() -> None:
    scene = cameras(TURNED)
    box = box_of(scene, (0.0, 0.0, 0.0, 0.5, 0.25, 1.0), "scene")
    inside = Placement.of(scene, "scene").back(np.array([[0.4, 0.2, 0.9], [0.4, 0.3, 0.9]]))
    assert box.contains(torch.from_numpy(inside)).tolist() == [True, False]
    assert np.allclose(box.sides, [1.0, 0.5, 2.0])
    with pytest.raises(ConfigError, match="low < high"):
        box_of(scene, (0, 0, 0, 1, 1, 0), "scene")


def test_placement_goes_to_the_world_of_the_scenes_files_and_back() -> None:
    scene = cameras(TURNED)
    points = np.random.default_rng(0).normal(size=(5, 3))
    placement = Placement.of(scene, "scene")
    assert np.allclose(placement.points(points @ TURNED[:3, :3].T + TURNED[:3, 3]), points)
    assert np.allclose(placement.back(placement.points(points)), points)
    assert placement.scale == pytest.approx(0.5)
    assert np.allclose(Placement.of(scene, "normalised").points(points), points)

"""Splats placed on a ball."""

from __future__ import annotations

import pytest
import torch

from raymine.errors import ConfigError, RunError
from raymine.export.model import box_of
from raymine.export.splats.check import splat_psnr
from raymine.export.splats.place import SplatConfig, Surface, fit_harmonics, frames_of, gather, place, trace_views
from raymine.export.splats.rasterise import colour_along
from raymine.export.splats.refine import refine
from support.export_models import RADIUS, ball_model, empty_model


def test_placed_splats_lie_on_the_surface_show_it_and_refining_helps() -> None:
    model = ball_model()
    views, surface = trace_views(model, None, 18, 40)
    splats = place(model, surface, SplatConfig(count=2000, degree=1))
    assert 200 < len(splats) <= 2000
    assert float((splats.means.norm(dim=1) - RADIUS).abs().mean()) < 0.03
    before = splat_psnr(splats, views)
    assert before > 20
    assert splat_psnr(refine(splats, views, 40), views) > before + 2


def test_box_leaves_out_what_is_outside() -> None:
    model = ball_model()
    _, surface = trace_views(model, box_of(model.scene, (0, -2, -2, 2, 2, 2), "normalised"), 6, 24)
    assert len(surface.points) > 50
    assert float(surface.points[:, 0].min()) >= 0


def test_empty_field_is_refused() -> None:
    with pytest.raises(RunError, match="The field is empty"):
        trace_views(empty_model(), None, 2, 16)


def test_gathering_keeps_within_the_budget() -> None:
    points = torch.rand(5000, 3, generator=torch.Generator().manual_seed(0))
    surface = Surface(points, points, points, torch.full((5000,), 0.01))
    for count in (1, 40, 1000, 10_000):
        _, cube, found = gather(surface, count)
        assert found <= count
        assert int(cube.max()) == found - 1
    assert found > 4000


def test_colours_over_directions_are_fitted() -> None:
    drawn = torch.Generator().manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(400, 3, generator=drawn), dim=1)
    colours = 0.5 + 0.3 * directions
    surface = Surface(directions, directions, colours, directions[:, 0])
    found = fit_harmonics(surface, torch.zeros(400, dtype=torch.int64), 1, 1)
    assert float((colour_along(found.expand(400, -1, -1), directions) - colours).abs().max()) < 0.01


def test_frames_have_the_normal_as_their_third_axis() -> None:
    normals = torch.tensor([[0.0, 0, 1], [0.6, 0, -0.8], [0, 0, 0]])
    frames = frames_of(normals)
    assert torch.allclose(frames @ frames.transpose(1, 2), torch.eye(3).expand(3, 3, 3), atol=1e-6)
    assert torch.allclose(frames[1, :, 2], normals[1])
    assert torch.allclose(torch.linalg.det(frames), torch.ones(3))


@pytest.mark.parametrize("wrong", [{"count": 0}, {"degree": 4}, {"refine": -1}, {"count": 10**9}])
def test_impossible_budgets_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"`{next(iter(wrong))}`"):
        SplatConfig(**wrong)  # type: ignore[arg-type]

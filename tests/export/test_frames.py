"""Frames of a path, rendered and written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from raymine.contracts import Rays, Rendered
from raymine.export import Abandoned, orbit, render_path, render_view, write_frames
from support.novel_views import CAMERA, Sphere, make_scene, ring


def test_render_path_shows_a_centred_ball_and_writes_frames(tmp_path: Path) -> None:
    scene = make_scene(ring(np.zeros(3), 4.0, 0.3, np.linspace(0, 6.28, 8, endpoint=False)))
    calls: list[tuple[int, int]] = []
    path = orbit(scene, 3)
    frames = list(
        render_path(
            Sphere(), path, scene.bounds, background=(1.0, 1.0, 1.0), progress=lambda d, n: calls.append((d, n))
        )
    )
    assert calls == [(1, 3), (2, 3), (3, 3)]
    for frame in frames:
        assert frame.colour.shape == frame.depth.shape == frame.opacity.shape == (30, 40, 3)
        assert frame.colour[15, 20].tolist() == [255, 0, 0]
        assert frame.colour[0, 0].tolist() == [255, 255, 255]
        assert frame.opacity[15, 20].tolist() == [255, 255, 255]
        assert frame.depth[0, 0].tolist() == [0, 0, 0]
        middle, edge = frame.depth[15, 20].astype(int).sum(), frame.depth[15, 8].astype(int).sum()
        assert middle > edge > 0, "near is lighter than far"
    written = write_frames(frames, tmp_path / "out", kinds=("colour", "depth"))
    assert [p.name for p in written] == [f"{k}-{i:04d}.png" for i in range(3) for k in ("colour", "depth")]
    assert all(p.is_file() for p in written)


def test_large_view_is_rendered_in_pieces_with_the_same_pixels() -> None:
    sizes = []

    class Counted(Sphere):
        def render(self, rays: Rays, background: Tensor) -> Rendered:
            sizes.append(len(rays))
            return super().render(rays, background)

    scene = make_scene(ring(np.zeros(3), 4.0, 0.3, np.array([0.7])))
    views = []
    for piece in (1 << 20, 700):
        pose, background = scene.frames[0].pose, (0.0, 1.0, 0.0)
        views.append(render_view(Counted(), CAMERA, pose, scene.bounds, background=background, piece=piece))
    assert sizes == [1200, 700, 500]
    assert views[0].opacity.min() == 0
    assert views[0].opacity.max() == 1
    for name in ("colour", "opacity", "depth"):
        assert np.array_equal(getattr(views[0], name), getattr(views[1], name))


def test_unwanted_view_is_abandoned_between_pieces_and_rays_can_be_changed() -> None:
    scene = make_scene(ring(np.zeros(3), 4.0, 0.3, np.array([0.7])))
    pose, asked = scene.frames[0].pose, []

    def unwanted() -> bool:
        asked.append(True)
        return len(asked) > 2

    black = (0.0, 0.0, 0.0)
    with pytest.raises(Abandoned):
        render_view(Sphere(), CAMERA, pose, scene.bounds, background=black, piece=500, unwanted=unwanted)
    assert len(asked) == 3

    def away(rays: Rays) -> Rays:
        return replace(rays, directions=-rays.directions)

    assert render_view(Sphere(), CAMERA, pose, scene.bounds, background=black).opacity.max() == 1
    assert render_view(Sphere(), CAMERA, pose, scene.bounds, background=black, change=away).opacity.max() == 0

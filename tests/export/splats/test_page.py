"""The page of splats: what it holds, and what a browser shows of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from raymine.cameras import from_normalised
from raymine.contracts import Camera
from raymine.errors import ConfigError
from raymine.export.model import Placement
from raymine.export.splats.page import pack, read_page, unpack, write_page
from raymine.export.splats.place import SplatConfig, place, trace_views
from raymine.export.splats.rasterise import rasterise
from raymine.export.splats.record import rotation_of
from support.browser import Browser, browser
from support.export_models import TURNED, ball_model


def test_packed_splats_come_back_within_their_steps() -> None:
    model = ball_model()
    splats = place(model, trace_views(model, None, 6, 24)[1], SplatConfig(count=500, degree=2))
    about, data = pack(splats)
    assert len(data) == len(splats) * (9 + 3 + 4 + 1 + 3 + 24)
    back = unpack(about, data)
    assert torch.allclose(back.means, splats.means, atol=1e-6)
    assert torch.allclose(back.log_scales, splats.log_scales, atol=0.03)
    assert torch.allclose(rotation_of(back.quaternions), rotation_of(splats.quaternions), atol=0.04)
    assert torch.allclose(back.logits.sigmoid(), splats.logits.sigmoid(), atol=0.01)
    assert float((back.harmonics - splats.harmonics).abs().median()) < 0.01


def test_page_is_one_file_that_fetches_nothing(tmp_path: Path) -> None:
    model = ball_model()
    splats = place(model, trace_views(model, None, 6, 24)[1], SplatConfig(count=200, degree=0))
    write_page(tmp_path / "a.html", splats, model.scene, Placement.of(model.scene, "scene"))
    text = (tmp_path / "a.html").read_text()
    assert "@DATA@" not in text
    assert "http" not in text
    assert "src=" not in text
    assert len(read_page(tmp_path / "a.html")) == len(splats)
    (tmp_path / "b.html").write_text("<html></html>")
    with pytest.raises(ConfigError, match="not a page of splats"):
        read_page(tmp_path / "b.html")


def drawn(chromium: Browser) -> np.ndarray:
    """What the page shows once it has drawn its splats, [H, W, 3] in 0..1."""
    chromium.until("document.body.dataset.drawn > 0", 180)
    # The picture of a canvas reaches the screen with the next frames.
    chromium.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return chromium.picture().astype(np.float32) / 255


def test_browser_shows_what_the_rasteriser_draws_and_nothing_is_fetched(tmp_path: Path) -> None:
    """In the coordinates of a scene that is turned and scaled, from two cameras; then the keyboard turns the view."""
    model = ball_model(TURNED)
    scene, size = model.scene, 400
    splats = place(model, trace_views(model, None, 18, 40)[1], SplatConfig(count=3000, degree=2))
    page = tmp_path / "a.html"
    back = write_page(page, splats, scene, Placement.of(scene, "scene"))
    camera = Camera(size, size, size * 1.2, size * 1.2, size / 2, size / 2)
    fov = np.degrees(2 * np.arctan(0.5 / 1.2))
    pictures = []
    with browser() as chromium:
        for index in (0, 9):
            pose = from_normalised(scene, scene.frames[index].pose)
            numbers = ",".join(f"{value:.6f}" for value in pose.reshape(-1))
            wanted = f"#bare&pose={numbers}&fov={fov:.6f}"
            if index:
                chromium.evaluate(f"delete document.body.dataset.drawn; location.hash = '{wanted}'")
            else:
                chromium.open(page.as_uri() + wanted, width=size, height=size)
            pictures.append(drawn(chromium))
            truth = rasterise(back, camera, pose).over((1.0, 1.0, 1.0)).clamp(0, 1).numpy()
            assert truth.std() > 0.1
            assert -10 * np.log10(np.square(truth - pictures[-1]).mean()) > 30
        chromium.evaluate(
            "delete document.body.dataset.drawn;"
            "document.getElementById('view').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft'}))"
        )
        pictures.append(drawn(chromium))
        assert chromium.fetched() == []
    assert np.abs(pictures[0] - pictures[1]).max() > 0.2
    assert np.abs(pictures[1] - pictures[2]).max() > 0.05

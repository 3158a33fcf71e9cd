"""The hardness of pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from raymine.experiment import load_run, train
from raymine.pixels import Pixels
from raymine.rays import CameraRig
from raymine.render import VolumeRenderer
from raymine.scenes.bank import open_bank
from raymine.step import TrainData
from raymine.step.hardness import hardness_picture
from support.disc_scene import write_scene_of_eight
from support.runs import request


class _Rendered:
    """Images that show exactly what the field in training renders."""

    def __init__(self, state, rig, background) -> None:  # type: ignore[no-untyped-def]
        self._renderer, self._rig = VolumeRenderer(state.field, state.sampler), rig
        self._background = torch.tensor(background)

    def gather(self, image, y, x):  # type: ignore[no-untyped-def]
        colour = self._renderer.render(self._rig.rays_for_pixels(image, x, y), self._background).colour
        return torch.cat((colour, torch.ones(len(x), 1)), 1), torch.ones(len(x))


def test_hardness_is_zero_where_the_model_is_right_and_computing_it_changes_nothing(
    tmp_path: Path, monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    train(request(write_scene_of_eight(tmp_path / "scene"), tmp_path / "run", steps=60))
    loaded = load_run(tmp_path / "run", device="cpu")
    state, scene, frames = loaded.state, loaded.scene, loaded.trained
    before = {name: value.clone() for name, value in state.tensors().items()}
    y, x = (axis.reshape(-1) for axis in torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij"))
    pixels = Pixels(torch.full_like(x, 1), y, x)
    with open_bank(scene, frames) as bank:
        views = TrainData(CameraRig(scene, frames, loaded.device), bank, scene.bounds, scene.background)
        found = hardness_picture(state, views, pixels)
        assert found is not None
        assert found.shape == (256,)
        assert (found >= 0).all()
        assert found.max() > 1e-2
        own = _Rendered(state, views.rig, scene.background or (0.0, 0.0, 0.0))
        learnt = TrainData(views.rig, own, scene.bounds, scene.background)  # type: ignore[arg-type]
        nothing = hardness_picture(state, learnt, pixels)
        assert nothing is not None
        assert nothing.max() < 1e-3 * found.max()
        # A pixel's hardness does not depend on the pixels that are processed with it.
        monkeypatch.setattr("raymine.step.hardness.CHUNK", 100)
        again = hardness_picture(state, views, pixels)
        assert again is not None
        np.testing.assert_allclose(again, found, rtol=1e-3, atol=1e-6)
        assert hardness_picture(state, views, pixels, unwanted=lambda: True) is None
    assert all(torch.equal(value, before[name]) for name, value in state.tensors().items())
    assert all(parameter.grad is None for parameter in state.optimiser.parameters.values())

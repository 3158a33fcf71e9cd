"""The hardness of pixels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from raymine import recipes
from raymine.config import replace_fields
from raymine.experiment import load_run, train
from raymine.pixels import Pixels
from raymine.rays import CameraRig
from raymine.recipes.policies import policy_overrides
from raymine.render import VolumeRenderer
from raymine.scenes import load_scene
from raymine.scenes.bank import open_bank
from raymine.step import TrainData, create_state
from raymine.step.exposure import ExposureConfig
from raymine.step.hardness import HardView, hard_view, hardness_of, photo_of, spread_pixels
from raymine.step.poses import PoseConfig
from support.disc_scene import write_scene_of_eight
from support.moving_scene import write_moving_scene
from support.runs import request
from support.scenes import ball_scene
from support.step import CONFIG


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
        found = hardness_of(state, views, pixels)
        assert found is not None
        assert found.shape == (256,)
        assert (found >= 0).all()
        assert found.max() > 1e-2
        own = _Rendered(state, views.rig, scene.background or (0.0, 0.0, 0.0))
        learnt = TrainData(views.rig, own, scene.bounds, scene.background)  # type: ignore[arg-type]
        nothing = hardness_of(state, learnt, pixels)
        assert nothing is not None
        assert nothing.max() < 1e-3 * found.max()
        # A pixel's hardness does not depend on the pixels that are processed with it.
        monkeypatch.setattr("raymine.step.hardness.CHUNK", 100)
        again = hardness_of(state, views, pixels)
        assert again is not None
        np.testing.assert_allclose(again, found, rtol=1e-3, atol=1e-6)
        assert hardness_of(state, views, pixels, unwanted=lambda: True) is None
        # A view of its own among other views is the same image.
        view = hard_view(state, views, 1, 100)
        assert view is not None
        np.testing.assert_allclose(view.hardness.reshape(-1), found, rtol=1e-3, atol=1e-6)
        with open_bank(scene, frames[1:2]) as one:
            alone = TrainData(CameraRig(scene, frames[1:2], loaded.device), one, scene.bounds, scene.background)
            again = hard_view(state, alone, 0, 100, trained_as=1)
            assert again is not None
            np.testing.assert_allclose(again.hardness, view.hardness, rtol=1e-3, atol=1e-6)
            assert hard_view(state, alone, 0, 100, trained_as=1, unwanted=lambda: True) is None
    assert all(torch.equal(value, before[name]) for name, value in state.tensors().items())
    assert all(parameter.grad is None for parameter in state.optimiser.parameters.values())


def test_pixels_are_spread_over_the_view_and_pictures_are_of_their_size(tmp_path: Path) -> None:
    scene = load_scene(write_scene_of_eight(tmp_path / "scene"))
    frames = scene.of_split("train")
    with open_bank(scene, frames) as bank:
        views = TrainData(CameraRig(scene, frames), bank, scene.bounds, scene.background)
        pixels, shape = spread_pixels(views, 2, 4)
        assert shape == (4, 4)
        assert pixels.y.tolist() == [y for y in (2, 6, 10, 14) for _ in range(4)]
        assert pixels.x.tolist() == [2, 6, 10, 14] * 4
        assert pixels.image.unique().tolist() == [2]
        every, whole = spread_pixels(views, 2, 999)
        assert whole == (16, 16)
        assert every.x.tolist() == list(range(16)) * 16
        photo = photo_of(views, pixels).reshape(4, 4, 3)
    assert torch.equal(photo[0, 0], torch.ones(3))
    assert torch.allclose(photo[2, 2], torch.tensor([200.0, 80.0, 45.0]) / 255)


def test_hardest_tenth_tells_even_from_uneven_pictures() -> None:
    photo = np.ones((10, 10, 3), np.float32)
    even = HardView(photo, np.ones((10, 10), np.float32))
    assert even.hardest_tenth == pytest.approx(0.1)
    spot = np.zeros((10, 10), np.float32)
    spot[3, 4] = 2.0
    uneven = HardView(photo, spot)
    assert uneven.hardest_tenth == 1.0
    picture = uneven.picture().astype(int)
    assert picture.shape == (10, 10, 3)
    assert picture[3, 4].sum() > picture.sum(axis=-1).max() - 1
    assert HardView(photo, np.zeros((10, 10), np.float32)).hardest_tenth == 0.0


@pytest.mark.parametrize("recipe", ["ngp", "proposal", "vanilla-grid", "dynamic"])
@pytest.mark.parametrize("policy", ["none", "hard"])
def test_every_kind_of_model_has_hard_pixels_with_and_without_mining(tmp_path: Path, recipe: str, policy: str) -> None:
    write = write_moving_scene if recipe == "dynamic" else write_scene_of_eight
    scene = load_scene(write(tmp_path / "scene"))
    config = replace_fields(recipes.build(recipe, scene, "cpu"), policy_overrides(policy))
    frames = scene.of_split("train")[:2]
    with open_bank(scene, frames) as bank:
        views = TrainData(CameraRig(scene, frames), bank, scene.bounds, scene.background)
        state = create_state(config, views, seed=0, device=torch.device("cpu"))
        found = hard_view(state, views, 1, 6)
    assert found is not None
    assert found.hardness.shape == (6, 6)
    assert np.isfinite(found.hardness).all()
    assert (found.hardness > 0).any()
    assert all(parameter.grad is None for parameter in state.optimiser.parameters.values())


def test_view_that_was_not_trained_on_has_its_given_pose_and_the_mean_exposure() -> None:
    _, data = ball_scene()
    config = replace(CONFIG, poses=PoseConfig(), exposure=ExposureConfig())
    state, plain = (create_state(config, data, seed=0, device=torch.device("cpu")) for _ in range(2))
    assert state.poses is not None
    assert state.exposure is not None
    with torch.no_grad():
        state.poses.twist[2] = 0.1
        state.exposure.code[2] = 0.3
    found, expected, trained = (
        hard_view(state, data, 2, 24, trained=False),
        hard_view(plain, data, 2, 24),
        hard_view(state, data, 2, 24),
    )
    assert found is not None
    assert expected is not None
    assert trained is not None
    assert np.array_equal(found.hardness, expected.hardness)
    assert not np.allclose(trained.hardness, expected.hardness)

"""Flags that add techniques to a recipe: they change what they should, resume exactly and refuse nonsense."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from raymine import checkpoint, recipes
from raymine.contracts import Scene
from raymine.errors import ConfigError
from raymine.experiment import train
from raymine.losses import ColourLoss, DistortionLoss, FreeSpaceLoss, MaskLoss, OpacityLoss
from raymine.recipes.techniques import Techniques, with_techniques
from raymine.scenes.builtin import builtin_scene
from raymine.step import create_state
from raymine.step.poses import PoseConfig
from support.runs import StopAt, request
from support.scenes import SCENE, ball_scene

LARGE = replace(SCENE, cameras=(replace(SCENE.cameras[0], width=80, height=64),))
RGBA = replace(SCENE, background=(1.0, 1.0, 1.0))
PLAIN = recipes.build("ngp", SCENE, "cpu")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin_scene(tmp_path_factory.mktemp("builtin"), size=64, train_views=4, test_views=1)


def test_nothing_asked_for_changes_nothing() -> None:
    assert with_techniques(PLAIN, Techniques(), SCENE) is PLAIN


def test_terms_are_added_and_the_distortion_is_replaced() -> None:
    found = with_techniques(PLAIN, Techniques(opacity_loss=0.1, mask_loss=0.2, distortion=0.3), RGBA)
    assert found.loss == (ColourLoss("l2"), OpacityLoss(0.1), MaskLoss(0.2), DistortionLoss(0.3))
    again = with_techniques(found, Techniques(distortion=0.0), RGBA)
    assert again.loss == (ColourLoss("l2"), OpacityLoss(0.1), MaskLoss(0.2))


def test_free_space_loss_of_the_recipe_is_replaced_or_dropped() -> None:
    scene = replace(SCENE, bounds=replace(SCENE.bounds, levels=2))
    config = recipes.build("unbounded", scene, "cpu")
    assert FreeSpaceLoss() in config.loss
    assert with_techniques(config, Techniques(free_space=0.3), scene).loss[-1] == FreeSpaceLoss(0.3)
    assert FreeSpaceLoss() not in with_techniques(config, Techniques(free_space=0.0), scene).loss


@pytest.mark.parametrize(
    ("wanted", "scene", "words"),
    [
        (Techniques(free_space=0.1), SCENE, "this scene fits into a box"),
        (Techniques(mask_loss=0.1), SCENE, "the images of this scene are opaque"),
        (Techniques(depth_loss=0.1), SCENE, "the training frames of this scene have no depth maps"),
        (Techniques(progressive=True), SCENE, "images of 8 pixels are too small to begin with 1/4 of their size"),
    ],
)
def test_scenes_without_what_it_takes_are_refused(wanted: Techniques, scene: Scene, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        with_techniques(PLAIN, wanted, scene)


def test_settings_that_exclude_each_other_are_refused() -> None:
    errors = replace(PLAIN, pixels=replace(PLAIN.pixels, policy="error"))
    with pytest.raises(ConfigError, match="pixels are drawn by error"):
        with_techniques(errors, Techniques(progressive=True), LARGE)
    with pytest.raises(ConfigError, match="`refine_poses` opens the levels from coarse to fine already"):
        with_techniques(replace(PLAIN, poses=PoseConfig()), Techniques(coarse_to_fine=True), SCENE)
    assert with_techniques(PLAIN, Techniques(progressive=True), LARGE).progressive is not None


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["opacity_loss", "mask_loss", "depth_loss", "distortion"])
def test_weights_are_checked(name: str, weight: float) -> None:
    with pytest.raises(ConfigError, match=f"`{name}` must be a weight of 0"):
        Techniques(**{name: weight})


def test_field_without_levels_is_refused() -> None:
    from dataclasses import dataclass

    from torch import nn

    @dataclass(frozen=True)
    class Flat:
        def build(self, bounds: object, seed: int, device: object) -> nn.Module:
            return nn.Linear(3, 4)

    config = with_techniques(replace(PLAIN, field=Flat()), Techniques(coarse_to_fine=True), SCENE)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="`coarse_to_fine`: Linear has no levels that could fade in"):
        create_state(config, ball_scene()[1], seed=0, device=torch.device("cpu"))


def saved(run: Path) -> dict[str, torch.Tensor]:
    latest = checkpoint.load_latest(run / "checkpoints")
    assert latest is not None
    return latest.checkpoint.tensors


@pytest.mark.parametrize(
    "wanted",
    [
        Techniques(progressive=True),
        Techniques(coarse_to_fine=True),
        Techniques(opacity_loss=0.01, mask_loss=0.1, distortion=0.01),
    ],
    ids=["progressive", "coarse-to-fine", "losses"],
)
def test_stopped_and_resumed_run_equals_uninterrupted_run(wanted: Techniques, scene: Path, tmp_path: Path) -> None:
    changes = {"techniques": wanted, "evaluate_views": 0}
    train(request(scene, tmp_path / "whole", **changes))
    train(request(scene, tmp_path / "parts", **changes), observer=StopAt(16))
    train(request(scene, tmp_path / "parts", resume=True, **changes))
    whole, parts = saved(tmp_path / "whole"), saved(tmp_path / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    train(request(scene, tmp_path / "without", evaluate_views=0))
    without = saved(tmp_path / "without")
    assert not torch.equal(whole["field.table"], without["field.table"])
    with pytest.raises(ConfigError, match="was started with other settings"):
        train(request(scene, tmp_path / "parts", resume=True, steps=50, evaluate_views=0))

"""Scores of views after poses and exposures were fitted to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from raymine import recipes
from raymine.config import replace_fields
from raymine.contracts import Scene
from raymine.errors import ConfigError
from raymine.evaluate import FitConfig, Fitted, evaluate_views
from raymine.evaluate.fit import ViewFit, fitted_scores, starting_poses
from raymine.rays import CameraRig
from raymine.step import TrainState, create_state, train_step
from raymine.step.poses import PoseConfig
from support.moving_scene import moving_data, moving_scene
from support.poses import perturbed
from support.scenes import MemoryImages, ball_scene
from support.step import CONFIG

CPU = torch.device("cpu")
SCENE, DATA = ball_scene()
VIEWS = (0, 3)
SMALL_GRID = {"field.grid.levels": 2, "field.grid.log2_entries": 8, "field.grid.finest": 32, "sampler.resolution": 8}


@pytest.fixture(scope="module")
def state() -> TrainState:
    made = create_state(replace(CONFIG, poses=PoseConfig(fade=0.0, lr=1e-7)), DATA, seed=0, device=CPU)
    made.horizon = 200
    for _ in range(200):
        train_step(made, DATA)
    return made


def scored(state: TrainState, scene: Scene, images: MemoryImages, config: FitConfig) -> tuple[float, Fitted]:
    """PSNR without fitting, and the scores with it, of the views `VIEWS`."""
    rig = CameraRig(scene, VIEWS)
    direct = evaluate_views(state.renderer(), rig, images, background=(1.0, 1.0, 1.0))
    calls: list[tuple[int, int]] = []
    fitted = fitted_scores(
        state, state.renderer(), scene, VIEWS, images, config, trained=range(8), names=["a", "b"],
        progress=lambda done, total: calls.append((done, total)),
    )  # fmt: skip
    assert calls == [(done + 1, 2 * config.steps) for done in range(2 * config.steps)]
    assert [view.name for view in fitted.views] == ["a", "b"]
    return direct.psnr, fitted


def of_views(gain: Sequence[float] = (1.0, 1.0)) -> MemoryImages:
    images = [DATA.images.image(i).astype(np.float64) for i in VIEWS]
    for image, factor in zip(images, gain, strict=True):
        image[..., :3] *= factor
    return MemoryImages([image.round().astype(np.uint8) for image in images])


def test_wrong_poses_of_test_views_are_fitted(state: TrainState) -> None:
    wrong = perturbed(SCENE, VIEWS, 3.0, 0.05)
    # The other images keep their poses, so the world stays where it is.
    before, fitted = scored(state, wrong, of_views(), FitConfig("poses", steps=200, pixels=256))
    right, _ = scored(state, SCENE, of_views(), FitConfig("poses", steps=1, pixels=16))
    assert before < right - 2
    assert fitted.evaluation.psnr > right - 0.7
    assert all(fit.kept and fit.degrees > 1 for fit in fitted.fits)
    assert all(fit.code == (0.0,) * 6 for fit in fitted.fits)


def test_exposures_of_test_views_are_fitted(state: TrainState) -> None:
    config = FitConfig("exposure", steps=100, pixels=256)
    before, fitted = scored(state, SCENE, of_views((0.5, 0.8)), config)
    assert fitted.evaluation.psnr > before + 3
    assert all(fit.twist == (0.0,) * 6 for fit in fitted.fits)
    stored = fitted.to_json()
    assert (stored["what"], stored["steps"], stored["pixels"], stored["mean_degrees"]) == ("exposure", 100, 256, 0.0)
    rows = stored["images"]
    assert isinstance(rows, list)
    assert [(row["name"], row["kept"]) for row in rows] == [("a", True), ("b", True)]
    assert rows[0]["psnr"] == fitted.views[0].psnr


def test_fit_leaves_the_model_as_it_was(state: TrainState) -> None:
    before = {name: value.clone() for name, value in state.tensors().items()}
    scored(state, SCENE, of_views(), FitConfig("both", steps=3, pixels=64))
    assert all(torch.equal(value, before[name]) for name, value in state.tensors().items())
    assert all(parameter.grad is None for parameter in state.optimiser.parameters.values())


def test_fit_that_raises_the_error_is_dropped(state: TrainState) -> None:
    """A learning rate that throws the camera off: the view is scored as it started."""
    before, fitted = scored(state, SCENE, of_views(), FitConfig("poses", steps=2, pixels=64, pose_lr=0.15))
    assert fitted.fits == (ViewFit(), ViewFit())
    assert fitted.evaluation.psnr == pytest.approx(before, abs=0.02)


def test_test_poses_start_in_the_world_of_the_refined_ones(state: TrainState) -> None:
    """All training cameras have moved by the same vector, and so do the test poses before they are fitted."""
    assert state.poses is not None
    kept = state.poses.twist.detach().clone()
    with torch.no_grad():
        state.poses.twist[:, 3:] = torch.tensor([0.02, 0.0, -0.01])
    tests = replace(SCENE, frames=(*SCENE.frames, *(SCENE.frames[i] for i in VIEWS)))
    found = starting_poses(state, tests, (8, 9), range(8))
    with torch.no_grad():
        state.poses.twist.copy_(kept)
    expected = np.stack([SCENE.frames[i].pose for i in VIEWS])
    expected[:, :, 3] += np.array([0.02, 0.0, -0.01])
    assert np.allclose(found, expected, atol=1e-5)


def test_views_of_a_model_that_moves_are_fitted_at_their_own_times() -> None:
    scene = moving_scene(4)
    data = moving_data(scene)
    config = replace_fields(recipes.build("dynamic", scene, "cpu"), SMALL_GRID)
    made = create_state(config, data, seed=0, device=CPU)
    assert isinstance(data.images, MemoryImages)
    images = MemoryImages([data.images.image(i) for i in VIEWS])
    calls: list[tuple[int, int]] = []
    fitted = fitted_scores(
        made, made.renderer(), scene, VIEWS, images, FitConfig("poses", steps=3, pixels=32),
        progress=lambda done, total: calls.append((done, total)),
    )  # fmt: skip
    assert calls[-1] == (6, 6)
    assert all(math.isfinite(view.psnr) for view in fitted.views)


@pytest.mark.parametrize("changes", [{"what": "colour"}, {"steps": 0}, {"pixels": 0}, {"pose_lr": math.inf}])
def test_impossible_fits_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        FitConfig(**changes)  # type: ignore[arg-type]

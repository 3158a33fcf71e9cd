"""The recipe `unbounded`: its choice by the scene, how far it reaches, training under every policy, exact resume."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import raymine
from raymine import recipes
from raymine.contracts import Scene, StepReport
from raymine.errors import ConfigError
from raymine.experiment import TrainRequest
from raymine.experiment.prepare import prepare
from raymine.fields import HashFieldConfig
from raymine.kernels.hash_grid.op import GridSpec
from raymine.losses import ColourLoss, DistortionLoss, FreeSpaceLoss, InterlevelLoss
from raymine.rays import CameraRig
from raymine.recipes.unbounded import FEW, FORMING, LEVELS
from raymine.samplers import OccupancyConfig
from raymine.samplers.proposal import ProposalConfig
from raymine.step import TrainConfig, TrainData, TrainState, create_state, train_step
from support.scene_writers import ring, write_colmap
from support.scenes import ball_scene

CPU = torch.device("cpu")
BALL, PIXELS = ball_scene()
SCENE = replace(BALL, bounds=replace(BALL.bounds, levels=2, near=0.5, far=8.0))


def small(scene: Scene, device: str) -> TrainConfig:
    """The recipe with a field and a grid that a test can afford."""
    config = recipes.build("unbounded", scene, device)
    assert isinstance(config.sampler, OccupancyConfig)
    return replace(
        config,
        field=HashFieldConfig(GridSpec(levels=4, features=2, log2_entries=12, base=8, finest=64), width=16),
        sampler=replace(config.sampler, resolution=16, step=0.1, cone=0.1, start=16, full_steps=32),
        batch=replace(config.batch, samples=1 << 13),
        optimiser=replace(config.optimiser, warmup=10),
    )


def fresh(policy: str) -> tuple[TrainState, TrainData]:
    config = small(SCENE, "cpu")
    scene = SCENE.reaching(config.levels)
    data = replace(PIXELS, rig=CameraRig(scene, range(len(scene.frames))), bounds=scene.bounds)
    mining = replace(config.mining, policy=policy)  # type: ignore[arg-type]
    state = create_state(replace(config, mining=mining), data, seed=0, device=CPU)
    state.horizon = 200
    return state, data


def psnr(reports: list[StepReport]) -> float:
    return -10 * math.log10(sum(report.mse for report in reports) / len(reports))


@pytest.mark.parametrize("policy", ["none", "prune", "hard"])
def test_unbounded_learns_and_resumes_bit_for_bit(policy: str) -> None:
    (whole, data), (half, _), (rest, _) = fresh(policy), fresh(policy), fresh(policy)
    expected = [train_step(whole, data) for _ in range(60)]
    found = [train_step(half, data) for _ in range(31)]
    rest.restore({name: value.clone() for name, value in half.tensors().items()}, half.scalars())
    found += [train_step(rest, data) for _ in range(29)]
    assert found == expected
    for name, value in whole.tensors().items():
        assert torch.equal(value, rest.tensors()[name]), name
    assert psnr(expected[-10:]) > psnr(expected[:5]) + 1


def test_scene_reaches_the_levels_of_the_recipe_and_keeps_more() -> None:
    near, far = SCENE.reaching(LEVELS), replace(SCENE, bounds=replace(SCENE.bounds, levels=9)).reaching(LEVELS)
    assert (near.bounds.levels, near.bounds.far) == (LEVELS, 4.0 * 2 ** (LEVELS - 1))
    assert far.bounds.levels == 9
    assert SCENE.reaching(0) is SCENE
    assert BALL.reaching(LEVELS) is BALL, "a scene in a box has no levels to add"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_loss_has_distortion_and_bounded_scenes_are_refused(device: str) -> None:
    config = recipes.build("unbounded", SCENE, device)
    assert any(isinstance(term, DistortionLoss) for term in config.loss)
    with pytest.raises(ConfigError, match="fits into one") as refused:
        recipes.build("unbounded", BALL, device)
    assert "ngp" in str(refused.value.hint)


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number of photos counts as many."""
    monkeypatch.setattr(importlib.import_module("raymine.recipes.unbounded"), "FEW", 0)


def with_photos(count: int) -> Scene:
    frames = tuple(replace(SCENE.frames[i % len(SCENE.frames)], split="train") for i in range(count))
    return replace(SCENE, frames=frames, format="colmap")


@pytest.mark.parametrize(
    ("count", "device", "few"),
    [(FEW, "cpu", True), (FEW + 1, "cpu", False), (FEW, "cuda", True), (FEW + 1, "cuda", False)],
)
def test_few_photos_around_a_thing_get_the_free_space_loss(count: int, device: str, few: bool) -> None:
    config = recipes.build("unbounded", with_photos(count), device)
    assert any(isinstance(term, FreeSpaceLoss) for term in config.loss) == few
    assert (config.levels == 0) == (few or device == "cpu")
    if device == "cuda":
        assert config.batch.samples == (1 << 19 if few else 1 << 21)
        assert isinstance(config.sampler, OccupancyConfig)
        assert config.sampler.start == (0 if few else FORMING)


def test_few_photos_keep_the_levels_of_the_scene(tmp_path: Path) -> None:
    write_colmap(ring(), tmp_path / "capture")
    capture = prepare(TrainRequest(tmp_path / "capture", steps=1, device="cpu"))
    assert capture.config.train.levels == 0
    assert not any("unbounded samples" in said for said in capture.scene.decisions)


def test_cameras_that_all_look_one_way_leave_cells_out_at_once() -> None:
    frames = tuple(
        replace(frame, pose=np.concatenate((np.eye(3), [[0.1 * i], [0.0], [4.0]]), 1))
        for i, frame in enumerate(SCENE.frames)
    )
    config = recipes.build("unbounded", replace(SCENE, frames=frames), "cuda")
    assert isinstance(config.sampler, OccupancyConfig)
    assert (config.sampler.start, config.levels) == (0, 0)
    assert not any(isinstance(term, FreeSpaceLoss) for term in config.loss), "the fused step has no such term"


@pytest.mark.usefixtures("many")
def test_auto_takes_the_recipe_that_suits_the_scene(tmp_path: Path) -> None:
    write_colmap(ring(), tmp_path / "capture")
    capture = prepare(TrainRequest(tmp_path / "capture", steps=1, device="cpu"))
    assert capture.config.recipe == "unbounded"
    assert any(said.startswith("Recipe: unbounded, since") for said in capture.scene.decisions)
    on_cpu, on_cuda = (recipes.build("unbounded", capture.scene, device) for device in ("cpu", "cuda"))
    assert isinstance(on_cpu.sampler, ProposalConfig)
    assert on_cpu.levels == 0
    assert {type(term) for term in on_cpu.loss} == {ColourLoss, InterlevelLoss, DistortionLoss}
    assert isinstance(on_cuda.sampler, OccupancyConfig)
    assert on_cuda.levels == LEVELS
    assert on_cuda.sampler.start == FORMING
    box = prepare(TrainRequest("builtin", steps=1, device="cpu"))
    assert box.config.recipe == "ngp"


def far_reaching(scene: Scene, device: str) -> TrainConfig:
    return replace(small(SCENE, device), levels=LEVELS)


def test_run_of_a_capture_is_trained_resumed_and_opened_with_its_levels(tmp_path: Path) -> None:
    write_colmap(ring(), tmp_path / "capture")
    out = tmp_path / "run"
    options = {"out": out, "device": "cpu", "progress": False}
    raymine.train(tmp_path / "capture", "ngp", steps=4, **options)
    # Without a recipe, a resumed run keeps its own.
    again = raymine.train(tmp_path / "capture", steps=6, resume=True, **options)
    assert (again.config.recipe, again.step) == ("ngp", 6)
    far = raymine.train(tmp_path / "capture", far_reaching, steps=4, out=tmp_path / "far", device="cpu", progress=False)
    asked = prepare(TrainRequest(tmp_path / "capture", recipe=far_reaching, steps=1, device="cpu"))
    assert any(f"far_reaching samples {LEVELS} levels" in said for said in asked.scene.decisions)
    assert raymine.load(tmp_path / "far").scene.bounds.levels == far.scene.bounds.levels == LEVELS


def test_resumed_run_of_an_earlier_version_keeps_its_first_update_of_the_grid(tmp_path: Path) -> None:
    write_colmap(ring(), tmp_path / "capture")
    options = {"out": tmp_path / "run", "device": "cpu", "progress": False}

    start = 0

    def recipe(scene: Scene, device: str) -> TrainConfig:
        config = small(scene, device)
        return replace(config, sampler=replace(config.sampler, start=start))  # type: ignore[type-var]

    raymine.train(tmp_path / "capture", recipe, steps=4, **options)
    start = 16
    again = raymine.train(tmp_path / "capture", recipe, steps=6, resume=True, **options)
    assert again.step == 6
    assert isinstance(again.config.train.sampler, OccupancyConfig)
    assert again.config.train.sampler.start == 0

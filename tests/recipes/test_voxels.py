"""The recipe `voxels`: it learns, grows while it trains, and resumes bit for bit before and after that."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from raymine import recipes
from raymine.contracts import StepReport
from raymine.errors import ConfigError
from raymine.fields.voxel_field import VoxelField, VoxelFieldConfig
from raymine.samplers import OccupancyConfig
from raymine.step import TrainConfig, TrainState, create_state, train_step
from raymine.step.objective import closed_form
from support.scenes import ball_scene

CPU = torch.device("cpu")
SCENE, DATA = ball_scene()


def small() -> TrainConfig:
    """The recipe with a grid that a test can afford, which grows at step 30 and is pruned at step 50."""
    config = recipes.build("voxels", SCENE, "cpu")
    assert isinstance(config.field, VoxelFieldConfig)
    assert isinstance(config.sampler, OccupancyConfig)
    field = replace(config.field, resolutions=(12, 24), grow_at=(30,), prune_at=(50,), rows=1 << 14)
    return replace(
        config,
        field=replace(field, variation_rows=256),
        sampler=replace(config.sampler, resolution=16, step=0.05),
        batch=replace(config.batch, samples=1 << 12),
        optimiser=replace(config.optimiser, warmup=10),
    )


def fresh(policy: str = "hard") -> TrainState:
    config = small()
    mining = replace(config.mining, policy=policy)  # type: ignore[arg-type]
    state = create_state(replace(config, mining=mining), DATA, seed=0, device=CPU)
    state.horizon = 200
    return state


def psnr(reports: list[StepReport]) -> float:
    return -10 * math.log10(sum(report.mse for report in reports) / len(reports))


@pytest.mark.parametrize(("policy", "stop"), [("none", 20), ("prune", 40), ("hard", 30), ("hard", 60)])
def test_voxels_learn_and_resume_bit_for_bit(policy: str, stop: int) -> None:
    whole, half, rest = fresh(policy), fresh(policy), fresh(policy)
    expected = [train_step(whole, DATA) for _ in range(80)]
    for _ in range(stop):
        train_step(half, DATA)
    rest.restore({name: value.clone() for name, value in half.tensors().items()}, half.scalars())
    found = [train_step(rest, DATA) for _ in range(80 - stop)]
    assert found == expected[stop:]
    for name, value in whole.tensors().items():
        assert torch.equal(value, rest.tensors()[name]), name
    assert psnr(expected[-10:]) > psnr(expected[:10]) + 3
    assert isinstance(whole.module, VoxelField)
    assert whole.module.resolution == 24
    assert int((whole.module.vertices >= 0).sum()) < 24**3


@pytest.mark.parametrize("policy", ["none", "prune", "hard"])
def test_step_that_selects_no_sample_leaves_the_field_finite(policy: str) -> None:
    state = fresh(policy)
    assert isinstance(state.module, VoxelField)
    with torch.no_grad():
        state.module.densities.fill_(-20.0)
    report = train_step(state, DATA)
    assert report.finite
    assert report.trained == (report.marched if policy == "none" else 0)


@pytest.mark.parametrize("pixels", [25, 100, 400, 1600])
def test_first_samples_are_not_faint_whatever_the_size_of_images(pixels: int) -> None:
    camera = replace(SCENE.cameras[0], fx=1.4 * pixels, fy=1.4 * pixels, width=pixels, height=pixels)
    config = recipes.build("voxels", replace(SCENE, cameras=(camera,) * len(SCENE.cameras)), "cpu")
    assert isinstance(config.field, VoxelFieldConfig)
    assert isinstance(config.sampler, OccupancyConfig)
    assert config.mining.faint < 1 - math.exp(-config.sampler.step * math.exp(config.field.start - 1))


def test_grid_of_a_run_on_a_cpu_becomes_finest_whatever_its_length() -> None:
    config = recipes.build("voxels", SCENE, "cpu")
    assert isinstance(config.field, VoxelFieldConfig)
    for steps in (10, 400, 20_000):
        assert max(config.field.moments(steps)) <= 0.5 * steps


def test_average_and_moments_follow_the_rows_when_the_grid_grows() -> None:
    state = fresh()
    for _ in range(31):
        train_step(state, DATA)
    shown = state.shown
    assert isinstance(shown, VoxelField)
    assert isinstance(state.module, VoxelField)
    assert shown.resolution == 24
    assert torch.equal(shown.index, state.module.index)
    unused = state.module.vertices < 0
    assert bool(unused.any())
    for name in ("densities", "colours"):
        assert float(state.optimiser.second[f"field.{name}"][unused].abs().max()) == 0.0
        assert float(state.optimiser.second[f"field.{name}"].abs().max()) > 0.0


def test_recipe_has_a_closed_form_and_refuses_what_it_cannot_do() -> None:
    assert closed_form(fresh()) is not None
    with pytest.raises(ConfigError, match="needs a box"):
        recipes.build("voxels", replace(SCENE, bounds=replace(SCENE.bounds, levels=3)), "cpu")
    moving = replace(SCENE, frames=tuple(replace(frame, time=0.5) for frame in SCENE.frames))
    with pytest.raises(ConfigError, match="times"):
        recipes.build("voxels", moving, "cuda")
    assert isinstance(recipes.build("voxels", SCENE, "cuda").field, VoxelFieldConfig)

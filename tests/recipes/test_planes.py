"""The recipe `planes`: it learns, static and moving, resumes bit for bit, and has a closed form."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from raymine import recipes
from raymine.contracts import Frame, Scene, StepReport
from raymine.fields.plane_field import PlaneFieldConfig
from raymine.rays import CameraRig
from raymine.samplers import OccupancyConfig
from raymine.step import TrainConfig, TrainData, TrainState, create_state, train_step
from raymine.step.objective import closed_form
from support.scenes import SCENE as EMPTY
from support.scenes import MemoryImages, ball_scene, look_at

CPU = torch.device("cpu")
SCENE, DATA = ball_scene()


def small(scene: Scene) -> TrainConfig:
    """The recipe with planes that a test can afford."""
    config = recipes.build("planes", scene, "cpu")
    assert isinstance(config.field, PlaneFieldConfig)
    assert isinstance(config.sampler, OccupancyConfig)
    return replace(
        config,
        field=replace(config.field, resolutions=(12, 24), features=8, width=16),
        sampler=replace(config.sampler, resolution=16, step=0.05),
        batch=replace(config.batch, samples=1 << 12),
        optimiser=replace(config.optimiser, warmup=10),
    )


def fresh(policy: str = "hard", scene: Scene = SCENE, data: TrainData = DATA) -> TrainState:
    config = small(scene)
    mining = replace(config.mining, policy=policy)  # type: ignore[arg-type]
    state = create_state(replace(config, mining=mining), data, seed=0, device=CPU)
    state.horizon = 200
    return state


def psnr(reports: list[StepReport]) -> float:
    return -10 * math.log10(sum(report.mse for report in reports) / len(reports))


@pytest.mark.parametrize("policy", ["none", "prune", "hard"])
def test_planes_learn_and_resume_bit_for_bit(policy: str) -> None:
    whole, half, rest = fresh(policy), fresh(policy), fresh(policy)
    expected = [train_step(whole, DATA) for _ in range(80)]
    for _ in range(40):
        train_step(half, DATA)
    rest.restore({name: value.clone() for name, value in half.tensors().items()}, half.scalars())
    found = [train_step(rest, DATA) for _ in range(40)]
    assert found == expected[40:]
    for name, value in whole.tensors().items():
        assert torch.equal(value, rest.tensors()[name]), name
    assert psnr(expected[-10:]) > psnr(expected[:10]) + 3


def test_vector_matrix_product_learns_too() -> None:
    config = small(SCENE)
    assert isinstance(config.field, PlaneFieldConfig)
    state = create_state(replace(config, field=replace(config.field, product="vm")), DATA, seed=0, device=CPU)
    state.horizon = 200
    reports = [train_step(state, DATA) for _ in range(80)]
    assert psnr(reports[-10:]) > psnr(reports[:10]) + 3


def moving_disc() -> tuple[Scene, TrainData]:
    """A ball seen by 12 cameras, each at a moment of its own: it is red in the first half and green in the second."""
    views = 12
    camera, frames = SCENE.cameras[0], []
    for i in range(views):
        a = 2 * np.pi * (5 * i % views) / views
        pose = look_at(3.0 * np.array([np.cos(a), np.sin(a), 0.3]))
        frames.append(Frame(Path(f"{i}.png"), 0, pose, time=i / (views - 1)))
    scene = replace(SCENE, cameras=(camera,), frames=tuple(frames))
    rig = CameraRig(scene, range(views))
    images = []
    for i in range(views):
        rays = rig.rays_for_image(i)
        hit = (rays.origins * rays.directions).sum(-1) ** 2 - (rays.origins**2).sum(-1) + 0.64 > 0
        colour = torch.tensor([255, 0, 0, 255] if i < views / 2 else [0, 255, 0, 255])
        image = torch.where(hit[:, None], colour, 0).reshape(camera.height, camera.width, 4)
        images.append(image.to(torch.uint8).numpy())
    return scene, TrainData(rig, MemoryImages(images), scene.bounds, scene.background)


def test_scene_with_times_gets_six_planes_and_learns_what_changes() -> None:
    scene, data = moving_disc()
    state = fresh("hard", scene, data)
    assert state.config.field.dynamic  # type: ignore[attr-defined]
    reports = [train_step(state, data) for _ in range(150)]
    # A ball of the mean colour over time has a PSNR of about 12 dB on training rays.
    assert psnr(reports[-10:]) > 17
    still = [train_step(other, data) for other in [create_static(data)] for _ in range(150)]
    assert psnr(reports[-10:]) > psnr(still[-10:]) + 3


def create_static(data: TrainData) -> TrainState:
    state = create_state(replace(small(SCENE), mining=fresh("hard").config.mining), data, seed=0, device=CPU)
    state.horizon = 200
    return state


def test_recipe_has_a_closed_form_beside_its_total_variation() -> None:
    assert closed_form(fresh()) is not None


def test_cuda_sizes_follow_the_pixels_of_the_scene() -> None:
    config = recipes.build("planes", EMPTY, "cuda")
    assert isinstance(config.field, PlaneFieldConfig)
    assert config.field.times == 0
    assert config.field.resolutions[-1] == 128  # images of 8 x 8 pixels

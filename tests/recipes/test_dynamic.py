"""The recipe `dynamic` on a ball that moves: a static model cannot show it, and this one does."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import raymine
from raymine import recipes
from raymine.contracts import Scene
from raymine.errors import ConfigError
from raymine.experiment import SilentObserver, StartInfo, TrainRequest, train
from raymine.kernels.hash_grid.op import GridSpec
from raymine.step import TrainConfig, TrainData, TrainState, create_state, train_step
from support.device import requires_gpu
from support.moving_scene import RADIUS, moving_data, moving_scene, write_moving_scene
from support.scenes import SCENE as STATIC

CPU = torch.device("cpu")
SCENE = moving_scene(120)
DATA, UNSEEN = moving_data(SCENE), moving_data(moving_scene(5, first=1.0))


def small(scene: Scene, device: str, recipe: str = "dynamic") -> TrainConfig:
    """The recipe with a grid for such small pictures, and with steps that a test can afford."""
    config = recipes.build(recipe, scene, device)
    field = replace(config.field, grid=GridSpec(levels=4, features=4, log2_entries=12, base=8, finest=64))  # type: ignore[type-var]
    sampler = replace(config.sampler, resolution=32, full_steps=32, cells=1 << 12)  # type: ignore[type-var]
    return replace(config, field=field, sampler=sampler, batch=replace(config.batch, samples=1 << 12, min_rays=128))


def fresh(policy: str = "hard", recipe: str = "dynamic") -> TrainState:
    config = small(SCENE, "cpu", recipe)
    mining = replace(config.mining, policy=policy)  # type: ignore[arg-type]
    state = create_state(replace(config, mining=mining), DATA, seed=0, device=CPU)
    state.horizon = 400
    return state


def trained(state: TrainState, steps: int) -> TrainState:
    for _ in range(steps):
        train_step(state, DATA)
    return state


def psnr(state: TrainState, data: TrainData) -> float:
    """Mean PSNR of all pictures of `data`."""
    renderer, background, found = state.renderer(), torch.ones(3), []
    for i in range(len(data.rig)):
        shown = renderer.render(data.rig.rays_for_image(i), background).colour
        rgba = torch.from_numpy(data.images.image(i)).reshape(-1, 4).float() / 255
        wanted = torch.lerp(background.expand(len(rgba), 3), rgba[:, :3], rgba[:, 3:])
        found.append(-10 * math.log10(float((shown - wanted).square().mean())))
    return sum(found) / len(found)


def test_dynamic_learns_what_moves_and_a_static_recipe_does_not() -> None:
    """Unseen views, at other times than those of the training views nearby."""
    moving, static = trained(fresh(), 250), trained(fresh(recipe="ngp"), 250)
    assert psnr(moving, UNSEEN) > psnr(static, UNSEEN) + 5
    assert psnr(moving, UNSEEN) > 24
    assert psnr(moving, DATA) > 27
    # Seen from above, the ball is at one end of its path at time 0 and at the other at time 1. Cells that it leaves
    # stay occupied.
    for time, side in ((0.0, 1.0), (1.0, -1.0)):
        edge = torch.tensor([[side * (0.25 + 0.6 * RADIUS), 0.0, 3.0]])
        one = UNSEEN.rig.rays_for_image(0).slice(0, 1)
        ray = replace(one, origins=edge, directions=torch.tensor([[0.0, 0.0, -1.0]]), time=torch.tensor([time]))
        later = replace(ray, time=torch.tensor([1.0 - time]))
        assert len(moving.sampler.sample(ray, moving.field).samples) > 5
        assert float(moving.renderer().render(ray, torch.ones(3)).opacity) > 0.8
        assert float(moving.renderer().render(later, torch.ones(3)).opacity) < 0.2


@pytest.mark.parametrize("policy", ["none", "prune", "hard"])
def test_dynamic_learns_and_resumes_bit_for_bit(policy: str) -> None:
    whole, half, rest = fresh(policy), fresh(policy), fresh(policy)
    expected = [train_step(whole, DATA) for _ in range(80)]
    found = [train_step(half, DATA) for _ in range(40)]
    rest.restore({name: value.clone() for name, value in half.tensors().items()}, half.scalars())
    found += [train_step(rest, DATA) for _ in range(40)]
    assert found == expected
    for name, value in whole.tensors().items():
        assert torch.equal(value, rest.tensors()[name]), name
    assert np.mean([r.mse for r in expected[-10:]]) < 0.6 * np.mean([r.mse for r in expected[:5]])


def test_motion_is_trained_slower_than_the_rest() -> None:
    groups = fresh().parts["field"].groups()
    assert {group.role for group in groups} == {"table", "network", "motion"}
    assert next(group.rate for group in groups if group.role == "motion") < 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_dynamic_refuses_a_scene_without_times(device: str) -> None:
    with pytest.raises(ConfigError, match=r"frames of this scene have no `time`.*\n.*recipe `ngp`"):
        recipes.build("dynamic", STATIC, device)
    assert getattr(recipes.build("dynamic", SCENE, device).field, "dynamic", False)


def test_scene_with_different_times_chooses_dynamic() -> None:
    assert recipes.chosen_for(SCENE) == ("dynamic", "frames have different times, so the scene moves")
    same = replace(SCENE, frames=tuple(replace(frame, time=0.5) for frame in SCENE.frames))
    assert recipes.chosen_for(same)[0] == "ngp"


def test_warning_of_a_static_recipe_and_none_of_dynamic(tmp_path: Path) -> None:
    scene, seen = write_moving_scene(tmp_path / "scene", views=5), dict[str, tuple[str, ...]]()

    class Keep(SilentObserver):
        def on_start(self, info: StartInfo) -> None:
            seen["warnings"], seen["notes"] = tuple(info.warnings), tuple(info.notes)

    request = TrainRequest(scene, out=tmp_path / "a", steps=1, device="cpu", evaluate_views=0)
    train(request, observer=Keep())
    assert not seen["warnings"]
    assert json.loads((tmp_path / "a" / "config.json").read_text())["recipe"] == "dynamic"
    train(replace(request, recipe="ngp", out=tmp_path / "b"), observer=Keep())
    assert seen["warnings"] == ("Frames carry a time, but the recipe ngp is static: what moves will be blurred.",)


@requires_gpu
def test_dynamic_trains_on_cuda(tmp_path: Path) -> None:
    # With 24 views of 24 x 24 pixels this model, which is made for large images, overfits.
    scene = write_moving_scene(tmp_path / "scene", views=150)
    run = raymine.train(scene, steps=600, out=tmp_path / "run", device="cuda", progress=False)
    assert run.config.recipe == "dynamic"
    assert run.evaluate(split="train", views=10).psnr > 24
    assert run.evaluate().psnr > 24

"""The recipe `proposal`: it trains under every policy, resumes bit for bit, and its networks learn."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch

import raymine
from raymine import recipes
from raymine.config.codec import from_json, to_json
from raymine.contracts import Bounds, Scene, StepReport
from raymine.fields import HashFieldConfig
from raymine.fields.density_grid import DensityGridConfig
from raymine.kernels.hash_grid.op import GridSpec
from raymine.losses import ColourLoss, InterlevelLoss
from raymine.samplers.proposal import ProposalConfig
from raymine.scenes.builtin import builtin_scene
from raymine.step import TrainConfig, TrainState, create_state, train_step
from support.device import requires_gpu
from support.scenes import ball_scene

CPU = torch.device("cpu")
SCENE, DATA = ball_scene()


def small(scene: Scene, device: str) -> TrainConfig:
    """The recipe with a field and networks that a test can afford."""
    config = recipes.build("proposal", scene, device)
    network = DensityGridConfig(GridSpec(levels=3, features=2, log2_entries=10, base=8, finest=32), width=8)
    return replace(
        config,
        field=HashFieldConfig(GridSpec(levels=4, features=2, log2_entries=12, base=8, finest=64), width=16),
        sampler=ProposalConfig((network,) * 2, (24, 16), 12, anneal_steps=30, every=3, every_step_until=15),
        batch=replace(config.batch, samples=1 << 12),
        optimiser=replace(config.optimiser, warmup=10),
    )


def fresh(policy: str = "hard", loss: InterlevelLoss | None = None, bounds: Bounds = DATA.bounds) -> TrainState:
    config = small(replace(SCENE, bounds=bounds), "cpu")
    mining = replace(config.mining, policy=policy)  # type: ignore[arg-type]
    config = replace(config, mining=mining, loss=(ColourLoss("l2"), loss or InterlevelLoss()))
    state = create_state(config, replace(DATA, bounds=bounds), seed=0, device=CPU)
    state.horizon = 200
    return state


def psnr(reports: list[StepReport]) -> float:
    return -10 * math.log10(sum(report.mse for report in reports) / len(reports))


@pytest.mark.parametrize("policy", ["none", "prune", "hard"])
def test_proposal_learns_and_resumes_bit_for_bit(policy: str) -> None:
    whole, half, rest = fresh(policy), fresh(policy), fresh(policy)
    expected = [train_step(whole, DATA) for _ in range(60)]
    found = [train_step(half, DATA) for _ in range(31)]
    rest.restore({name: value.clone() for name, value in half.tensors().items()}, half.scalars())
    found += [train_step(rest, DATA) for _ in range(29)]
    assert found == expected
    for name, value in whole.tensors().items():
        assert torch.equal(value, rest.tensors()[name]), name
    assert psnr(expected[-10:]) > psnr(expected[:5]) + 5


@pytest.mark.parametrize("policy", ["none", "prune", "hard"])
def test_spline_form_of_the_loss_trains_an_unbounded_scene(policy: str) -> None:
    bounds = replace(DATA.bounds, levels=3, near=0.5, far=20.0)
    state = fresh(policy, InterlevelLoss(weight=0.01, blur=(0.03, 0.003)), bounds)
    reports = [train_step(state, replace(DATA, bounds=bounds)) for _ in range(60)]
    assert all(report.finite for report in reports)
    assert psnr(reports[-10:]) > psnr(reports[:5]) + 1


@pytest.mark.parametrize("policy", ["none", "hard"])
def test_networks_change_only_at_steps_that_train_them(policy: str) -> None:
    state = fresh(policy)
    names = [name for name in state.tensors() if name.startswith("sampler.networks.")]
    assert sorted(names) == [f"sampler.networks.{i}.{name}" for i in (0, 1) for name in ("hidden", "out", "table")]
    assert all(f"adam.second.{name}" in state.tensors() for name in names)
    changed: dict[str, set[int]] = {name: set() for name in names}
    for step in range(40):
        before = {name: state.tensors()[name].clone() for name in names}
        train_step(state, DATA)
        for name in names:
            if not torch.equal(before[name], state.tensors()[name]):
                changed[name].add(step)
    # At first the proposals bound all weights, and there is nothing to learn.
    for name, steps in changed.items():
        assert steps <= {*range(15), *range(15, 40, 3)}, name
        assert steps >= set(range(30, 40, 3)), name


def test_interlevel_loss_gathers_samples_at_the_surface() -> None:
    state = fresh("none")
    rays = DATA.rig.rays_for_image(0)
    middle = rays.slice(12 * 24 + 12, 12 * 24 + 13)

    def spread() -> float:
        samples = state.sampler.sample(middle, state.field).samples
        return float((((samples.t_start + samples.t_end) / 2 - 2.2).abs() < 0.3).float().mean())

    before = spread()
    for _ in range(120):
        train_step(state, DATA)
    assert before < 0.4
    assert spread() > 0.7, "the ball begins at a distance of 2.2"


def test_sizes_are_the_published_ones_on_cuda() -> None:
    unbounded = replace(SCENE, bounds=replace(SCENE.bounds, levels=5))
    for scene, samples, final in ((unbounded, (256, 96), 48), (SCENE, (128,), 64)):
        sampler = cast("ProposalConfig", recipes.build("proposal", scene, "cuda").sampler)
        assert (sampler.samples, sampler.final) == (samples, final)
        for network in cast("tuple[DensityGridConfig, ...]", sampler.networks):
            assert (network.grid.levels, network.grid.log2_entries) == (5, 17)
        assert (sampler.anneal_slope, sampler.anneal_steps, sampler.far) == (10.0, 1000, 1e3)
        cpu = cast("ProposalConfig", recipes.build("proposal", scene, "cpu").sampler)
        assert sum(cpu.samples) + cpu.final < sum(samples) + final


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_config_survives_json(device: str) -> None:
    config = recipes.build("proposal", SCENE, device)
    assert from_json(TrainConfig, to_json(config)) == config


def test_proposal_trains_the_builtin_scene(tmp_path: Path) -> None:
    scene = builtin_scene(tmp_path / "builtin", size=32, train_views=8, test_views=2)
    run = raymine.train(scene, small, steps=120, out=tmp_path / "run", device="cpu", progress=False)
    assert run.evaluate().psnr > 18
    frame = run.scene.frames[0]
    assert raymine.load(tmp_path / "run").render(frame.camera, frame.pose).colour.shape == (32, 32, 3)


@requires_gpu
@pytest.mark.parametrize("policy", ["none", "prune", "hard"])
def test_proposal_trains_on_cuda(tmp_path: Path, policy: str) -> None:
    scene = builtin_scene(tmp_path / "builtin", size=32, train_views=8, test_views=2)
    options = {"mining": policy, "device": "cuda", "progress": False}
    run = raymine.train(scene, small, steps=120, out=tmp_path / "run", **options)
    assert run.evaluate().psnr > 18

"""Pose refinement: gradients against finite differences, limits, resume, and recovery of perturbed poses."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from raymine import recipes
from raymine.cameras import pose_errors
from raymine.contracts import Draws, FadesLevels, FieldInput, FieldOutput, Rays, Rounds, Samples
from raymine.errors import ConfigError
from raymine.experiment.prepare import open_data
from raymine.kernels.judge.op import Wanted
from raymine.mining import HardConfig, MiningConfig
from raymine.render import query_points
from raymine.scenes.builtin import builtin_scene
from raymine.scenes.load import load_scene
from raymine.step import TrainState, create_state, mined, train_step
from raymine.step.batch import RayBatch, draw_batch
from raymine.step.objective import Objective
from raymine.step.poses import PoseConfig, PoseRefinement, move_rays, scene_scale
from raymine.step.precision import fields_for_step
from support.poses import perturbed, poses_of, with_cameras_of
from support.scenes import ball_scene
from support.step import CONFIG

CPU = torch.device("cpu")
SCENE, DATA = ball_scene()
REFINED = replace(CONFIG, poses=PoseConfig())
ALL = HardConfig(draw="topk", reweight="none", low=1.0, high=1.0)
MANY = HardConfig(draw="poisson", reweight="unbiased", low=1.0, high=1.0)
POLICIES = {
    "none": MiningConfig(policy="none"),
    "prune": MiningConfig(policy="prune", stop=0.0),
    "hard, all samples": MiningConfig(policy="hard", stop=0.0, hard=ALL),
    "hard, unbiased": MiningConfig(policy="hard", stop=0.0, hard=MANY),
}


def fresh(mining: MiningConfig | None = None, poses: PoseConfig | None = None) -> TrainState:
    config = replace(CONFIG, mining=mining or CONFIG.mining, poses=poses or PoseConfig(fade=0.0))
    state = create_state(config, DATA, seed=0, device=CPU)
    state.horizon = 200
    return state


def in_float64(state: TrainState) -> tuple[TrainState, RayBatch, Rounds]:
    """The state, its next batch and samples in float64, in which finite differences are precise."""
    assert state.poses is not None
    with torch.no_grad():
        state.poses.twist.copy_(0.02 * torch.randn(8, 6, generator=torch.Generator().manual_seed(4)))
    state.rays = 40
    batch = draw_batch(state, DATA)
    samples = state.sampler.sample(batch.rays.detached(), state.field, Draws(0, state.step, CPU)).samples
    state.module.double()
    state.poses.double()
    assert batch.pixels is not None
    assert batch.image is not None
    rays = DATA.rig.rays_for_pixels(batch.image, batch.pixels.x, batch.pixels.y)
    exact = Rays(*(part.double() for part in (rays.origins, rays.directions, rays.near, rays.far)))
    wanted = Wanted(*(part.double() for part in batch.wanted))
    packed = replace(samples, t_start=samples.t_start.double(), t_end=samples.t_end.double())
    return state, batch._replace(rays=exact, wanted=wanted), Rounds(packed)


def loss_of(state: TrainState, batch: RayBatch, samples: Samples, twist: Tensor) -> Tensor:
    """The loss as a function of the twists, with the samples where they are."""
    assert state.poses is not None
    assert batch.image is not None
    moved = PoseRefinement(state.poses.config, len(twist), DATA.bounds, 1.0, CPU).double()
    with torch.no_grad():
        moved.twist.copy_(twist)
        rays = moved.refine(batch.rays, batch.image)
        objective = Objective(state, rays, batch.wanted, (), batch.image)
        return objective(state.field.forward(query_points(rays, samples)), samples).total


@pytest.mark.parametrize("policy", POLICIES)
def test_gradient_of_poses_equals_finite_differences(policy: str) -> None:
    state = fresh(POLICIES[policy])
    for _ in range(20):
        train_step(state, DATA)
    state, batch, rounds = in_float64(state)
    assert state.poses is not None
    assert batch.image is not None
    twist = state.poses.twist.detach().clone()
    unbiased = policy == "hard, unbiased"
    draws, found = 300 if unbiased else 1, torch.zeros_like(twist)
    for _ in range(draws):
        refined = batch._replace(rays=state.poses.refine(batch.rays, batch.image))
        mined.backward(state, refined, rounds, fields_for_step(state.config, state.field))
        assert state.poses.twist.grad is not None
        found += state.poses.twist.grad / draws
        state.optimiser.clear()
        state.step += 1  # other samples are drawn
    eps, expected = 1e-7, torch.zeros_like(twist)
    for place in np.ndindex(*twist.shape):
        values = []
        for sign in (1, -1):
            changed = twist.clone()
            changed[place] += sign * eps
            values.append(loss_of(state, batch, rounds.samples, changed))
        expected[place] = (values[0] - values[1]) / (2 * eps)
    assert float(expected.abs().max()) > 1e-4
    # Chosen samples give the right gradient on average over draws; all other policies give it in every step, but for
    # the points within `eps` of a border of a cell, where it jumps.
    limit = 0.05 if unbiased else 1e-3
    assert float((found - expected).norm()) < limit * float(expected.norm())


def test_rays_move_with_their_cameras() -> None:
    """Rays of moved poses by the rig itself are the moved rays."""
    state = fresh()
    assert state.poses is not None
    with torch.no_grad():
        state.poses.twist.copy_(0.05 * torch.randn(8, 6, generator=torch.Generator().manual_seed(1)))
    moved = state.poses.moved(torch.from_numpy(poses_of(SCENE, range(8)))).numpy()
    there = replace(SCENE, frames=tuple(replace(f, pose=pose) for f, pose in zip(SCENE.frames, moved, strict=True)))
    image, x, y = torch.tensor([3, 5, 3]), torch.tensor([0, 9, 23]), torch.tensor([4, 1, 20])
    found = state.poses.refine(DATA.rig.rays_for_pixels(image, x, y), image)
    expected = with_cameras_of(DATA, there).rig.rays_for_pixels(image, x, y)
    assert torch.allclose(found.origins, expected.origins, atol=1e-5)
    assert torch.allclose(found.directions, expected.directions, atol=1e-6)
    assert found.origins.requires_grad
    assert not found.detached().directions.requires_grad
    assert float(scene_scale(SCENE.bounds)) == 1.0


def test_motion_of_zero_keeps_rays_bit_for_bit() -> None:
    rays = DATA.rig.rays_for_image(0)
    index = torch.zeros(len(rays), dtype=torch.int64)
    still = move_rays(rays, PoseRefinement(PoseConfig(), 1, DATA.bounds, 1.0, CPU).motions(), index)
    assert torch.equal(still.origins, rays.origins)
    assert torch.equal(still.directions, rays.directions)


def test_corrections_stay_within_limits_and_say_so() -> None:
    part = PoseRefinement(PoseConfig(limit_degrees=2.0, limit_distance=0.05), 3, DATA.bounds, 1.0, CPU)
    with torch.no_grad():
        part.twist[1, :3] = torch.tensor([0.3, -0.4, 0.0])
        part.twist[2] = 0.01
    before = part.twist[2].clone()
    part.clip()
    degrees, distance = part.sizes()
    assert degrees.tolist() == pytest.approx([0.0, 2.0, math.degrees(0.01 * math.sqrt(3))], rel=1e-5)
    assert float(distance.max()) <= 0.05
    assert torch.equal(part.twist[2], before)
    assert part.at_limit() == [1]


def test_runaway_learning_rate_ends_at_the_limit() -> None:
    state = fresh(poses=PoseConfig(lr=1.0, limit_degrees=3.0, limit_distance=0.02))
    reports = [train_step(state, DATA) for _ in range(5)]
    assert state.poses is not None
    assert state.poses.at_limit() == list(range(8))
    assert reports[-1].extra["pose_degrees"] <= 3.0 * (1 + 1e-5)
    assert reports[-1].extra["pose_distance"] <= 0.02 * (1 + 1e-5)


def test_learning_rate_falls_in_the_second_half_of_refinement() -> None:
    config = PoseConfig(until=0.5, final=0.01)
    assert [config.rate_at(step, 80) for step in (0, 20, 30, 40, 60)] == pytest.approx([1, 1, 0.1, 0.01, 0.01])
    assert PoseConfig(final=1.0).rate_at(50, 80) == 1
    moved = []
    for final in (1.0, 0.1):
        state = fresh(poses=PoseConfig(until=1.0, fade=0.0, final=final))
        state.horizon = 2
        train_step(state, DATA)
        assert state.poses is not None
        before = state.poses.twist.detach().clone()
        state.step = 2
        train_step(state, DATA)
        moved.append(state.poses.twist.detach() - before)
    assert torch.allclose(0.1 * moved[0], moved[1], rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("policy", ["none", "prune", "hard"])
def test_resume_is_exact(policy: str) -> None:
    """20 steps equal 10, a copy into a new state, and 10 more; levels are faded in meanwhile."""
    mining = MiningConfig(policy=policy, faint=1e-3)  # type: ignore[arg-type]
    config = PoseConfig(fade=0.08)
    whole, first = fresh(mining, config), fresh(mining, config)
    for _ in range(20):
        train_step(whole, DATA)
    for _ in range(10):
        train_step(first, DATA)
    second = fresh(mining, config)
    second.restore({name: value.clone() for name, value in first.tensors().items()}, first.scalars())
    for _ in range(10):
        train_step(second, DATA)
    assert second.scalars() == whole.scalars()
    for name, value in whole.tensors().items():
        assert torch.equal(value, second.tensors()[name]), name
    assert float(whole.tensors()["poses.twist"].abs().min()) > 0


def test_without_poses_nothing_of_a_state_changes() -> None:
    state = create_state(CONFIG, DATA, seed=0, device=CPU)
    train_step(state, DATA)
    assert not any(name.startswith(("poses", "exposure")) for name in (*state.tensors(), *state.scalars()))
    assert not state.fading


def test_levels_open_over_the_first_part_of_a_run() -> None:
    config = PoseConfig(coarse=0.25, fade=0.5)
    assert [config.open_share(step, 100) for step in (0, 25, 50, 99)] == pytest.approx([0.25, 0.625, 1.0, 1.0])
    assert PoseConfig(fade=0.0).open_share(0, 100) == 1.0
    state = fresh(poses=PoseConfig(coarse=0.25, fade=0.5))
    assert state.fading
    points = DATA.rig.rays_for_image(0).directions
    state.step = 150
    late = state.shown.density(points)
    state.step = 0
    with torch.no_grad():
        state.module.table.normal_()
        assert not torch.allclose(state.field.density(points), late)
        full = state.field.density(points)
        state.fade_levels()
        assert not torch.allclose(state.field.density(points), full)


class Fog(torch.nn.Module):
    """A field without levels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        return self.layer(positions)[:, 3]

    def forward(self, query: FieldInput) -> FieldOutput:
        out = self.layer(query.positions)
        return FieldOutput(out[:, :3], out[:, 3])


@pytest.mark.parametrize("policy", ["none", "prune", "hard"])
def test_field_without_levels_trains_with_poses(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(CONFIG.field), "build", lambda *_: Fog())
    state = fresh(MiningConfig(policy=policy), PoseConfig())  # type: ignore[arg-type]
    assert not isinstance(state.field, FadesLevels)
    train_step(state, DATA)
    assert state.poses is not None
    assert float(state.poses.twist.detach().abs().max()) > 0


@pytest.mark.parametrize("amp", ["bf16", "fp32"])
def test_half_precision_and_recomputed_activations_reach_the_poses(amp: str) -> None:
    state = fresh()
    state.config = replace(state.config, amp=amp, recompute_samples=256)  # type: ignore[arg-type]
    train_step(state, DATA)
    assert state.poses is not None
    assert float(state.poses.twist.detach().abs().min()) > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 0.0}, "poses.lr must be above 0, got 0.0"),
        ({"lr": math.nan}, "lr"),
        ({"final": 0.0}, "poses.final must be above 0 and at most 1, got 0.0"),
        ({"final": 1.5}, "poses.final"),
        ({"limit_degrees": 180.0}, "limit_degrees < 180"),
        ({"limit_distance": 0.0}, "limit_distance > 0"),
        ({"coarse": 1.5}, "coarse"),
        ({"fade": -0.1}, "fade"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PoseConfig(**changes)


def test_perturbed_poses_of_the_builtin_scene_are_recovered(tmp_path: Path) -> None:
    """Cameras that are 1 degree and 0.02 units off come back to less than half of that."""
    scene = load_scene(builtin_scene(tmp_path, size=48, train_views=16, test_views=1))
    frames = scene.of_split("train")
    wrong = perturbed(scene, frames, 1.0, 0.02)
    config = recipes.build("ngp", wrong, "cpu")
    with open_data(wrong, frames, CPU, None) as loaded:
        small = replace(config, batch=replace(config.batch, samples=1 << 13), poses=PoseConfig(until=1.0))
        state = create_state(small, loaded.train, seed=0, device=CPU)
        state.horizon = 600
        for _ in range(600):
            train_step(state, loaded.train)
    assert state.poses is not None
    truth, given = poses_of(scene, frames), poses_of(wrong, frames)
    before = pose_errors(given, truth)
    after = pose_errors(state.poses.moved(torch.from_numpy(given)).numpy(), truth)
    assert before.degrees.mean() > 0.9
    assert after.degrees.mean() < 0.5 * before.degrees.mean()

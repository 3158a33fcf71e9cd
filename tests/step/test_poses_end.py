"""The end of pose refinement within a run: what stays as it is, that it does not begin again, and exact resume."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from raymine.contracts import FieldInput
from raymine.errors import ConfigError
from raymine.fields import HashField
from raymine.mining import MiningConfig
from raymine.rays import CameraRig
from raymine.step import TrainState, create_state, train_step
from raymine.step.batch import draw_batch
from raymine.step.poses import PoseConfig, PoseRefinement
from support.scenes import ball_scene
from support.step import CONFIG

CPU = torch.device("cpu")
SCENE, DATA = ball_scene()
POLICIES = ("none", "prune", "hard")
HALF = PoseConfig(fade=0.2, until=0.5)


def fresh(policy: str = "hard", poses: PoseConfig = HALF, horizon: int = 20) -> TrainState:
    mining = MiningConfig(policy=policy, faint=1e-3)  # type: ignore[arg-type]
    state = create_state(replace(CONFIG, mining=mining, poses=poses), DATA, seed=0, device=CPU)
    state.horizon = horizon
    return state


def part(state: TrainState) -> PoseRefinement:
    assert state.poses is not None
    return state.poses


def trained(state: TrainState, steps: int) -> TrainState:
    for _ in range(steps):
        train_step(state, DATA)
    return state


def test_poses_are_refined_at_least_until_all_levels_are_open() -> None:
    assert PoseConfig(fade=0.5, until=0.4).end == 0.5
    assert PoseConfig(fade=0.7).end == 0.7
    assert PoseConfig(fade=0.4, until=0.8).end == 0.8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"until": 0.0}, "poses.until must be above 0 and at most 1, got 0.0"),
        ({"until": 1.1}, "poses.until must be above 0 and at most 1, got 1.1"),
        ({"until": math.nan}, "until"),
    ],
)
def test_impossible_ends_are_refused(changes: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PoseConfig(**changes)


@pytest.mark.parametrize("policy", POLICIES)
def test_twists_and_their_moments_do_not_change_after_the_end(policy: str) -> None:
    state = trained(fresh(policy), 10)
    assert state.refining
    names = ("poses.twist", "adam.first.poses.twist", "adam.second.poses.twist")
    before = {name: state.tensors()[name].clone() for name in names}
    table = state.tensors()["field.table"].clone()
    assert float(before["adam.first.poses.twist"].abs().max()) > 0, "momentum would move them"
    report = train_step(state, DATA)
    assert part(state).ended == 10
    assert not {"pose_degrees", "pose_distance"} & report.extra.keys()
    trained(state, 4)
    for name in names:
        assert torch.equal(state.tensors()[name], before[name]), name
    assert not torch.equal(state.tensors()["field.table"], table), "the field is trained on"


def test_poses_are_refined_to_the_end_where_that_is_asked_for() -> None:
    state = trained(fresh(poses=PoseConfig(until=1.0), horizon=4), 6)
    assert state.refining
    assert part(state).ended == 0


def test_horizon_that_grows_neither_refines_again_nor_closes_levels() -> None:
    state = trained(fresh(poses=PoseConfig(fade=0.5, until=0.5)), 11)
    state.horizon = 400
    assert not state.fading
    twist = part(state).twist.detach().clone()
    trained(state, 2)
    assert (state.refining, state.fading, part(state).ended) == (False, False, 10)
    assert torch.equal(part(state).twist.detach(), twist)
    again = fresh(poses=PoseConfig(fade=0.5, until=0.5))
    again.restore({name: value.clone() for name, value in state.tensors().items()}, state.scalars())
    assert (again.refining, again.fading, part(again).ended) == (False, False, 10)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("until", [0.25, 0.5, 0.75])
def test_resume_is_exact_across_the_end(policy: str, until: float) -> None:
    """20 steps equal 10, a copy into a new state, and 10 more; the end is before, at or after the copy."""
    config = PoseConfig(fade=0.2, until=until)
    whole, first = trained(fresh(policy, config), 20), trained(fresh(policy, config), 10)
    second = fresh(policy, config)
    second.restore({name: value.clone() for name, value in first.tensors().items()}, first.scalars())
    trained(second, 10)
    assert second.scalars() == whole.scalars()
    assert whole.scalars()["poses.ended"] == 20 * until
    for name, value in whole.tensors().items():
        assert torch.equal(value, second.tensors()[name]), name


def test_after_the_end_a_step_needs_no_graph_to_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    pulled, own = [], HashField.pull_back

    def pull_back(self: HashField, query: FieldInput, colour: torch.Tensor, density: torch.Tensor) -> None:
        pulled.append(query.has_graph)
        own(self, query, colour, density)

    monkeypatch.setattr(HashField, "pull_back", pull_back)
    state = trained(fresh(), 10)
    assert pulled == []
    assert draw_batch(state, DATA).rays.origins.requires_grad
    trained(state, 2)
    assert pulled == [False, False]
    assert not draw_batch(state, DATA).rays.origins.requires_grad


def test_rays_of_placed_cameras_are_the_refined_ones_through_any_lens() -> None:
    (camera, *_) = SCENE.cameras
    cameras = (
        camera,
        replace(camera, model="opencv", distortion=(0.1, -0.05, 0.01, -0.02, 0.01)),
        replace(camera, model="fisheye", distortion=(0.05, -0.02, 0.01, 0.0)),
    )
    frames = tuple(replace(frame, camera=i % 3) for i, frame in enumerate(SCENE.frames))
    rig = CameraRig(replace(SCENE, cameras=cameras, frames=frames), range(8))
    poses = PoseRefinement(PoseConfig(), 8, SCENE.bounds, 1.0, CPU)
    with torch.no_grad():
        poses.twist.copy_(0.05 * torch.randn(8, 6, generator=torch.Generator().manual_seed(1)))
    image = torch.arange(8).repeat_interleave(24)
    x, y = torch.arange(24).repeat(8), torch.arange(24).flip(0).repeat(8)
    expected = poses.refine(rig.rays_for_pixels(image, x, y), image)
    assert poses.placed(rig) is rig, "while poses are refined, the rays are moved"
    poses.end(5)
    placed = poses.placed(rig)
    found = placed.rays_for_pixels(image, x, y)
    assert torch.allclose(found.origins, expected.origins, atol=1e-6)
    assert torch.allclose(found.directions, expected.directions, atol=1e-6)
    assert torch.equal(found.far, expected.far)
    assert float((found.origins - rig.rays_for_pixels(image, x, y).origins).abs().max()) > 0.01
    assert poses.placed(rig) is placed
    with torch.no_grad():
        poses.twist.zero_()
    poses.restored({"ended": 5})
    assert torch.allclose(poses.placed(rig).table, rig.table, atol=1e-7), "a restored state has other twists"


def test_rollback_to_a_state_before_the_end_keeps_the_poses_that_were_found() -> None:
    before, now = trained(fresh("none"), 5), trained(fresh("none"), 15)
    ended, twist = part(now).ended, part(now).twist.detach().clone()
    assert before.refining
    assert ended > 5
    tensors, scalars = part(now).kept_in(before.tensors(), before.scalars())
    now.restore({name: value.clone() for name, value in tensors.items()}, scalars)
    assert not now.refining
    assert part(now).ended == ended
    assert torch.equal(part(now).twist, twist)
    assert torch.equal(now.tensors()["field.table"], before.tensors()["field.table"])
    assert part(before).kept_in(before.tensors(), {"a": 1})[1] == {"a": 1}, "while poses are refined, nothing is kept"

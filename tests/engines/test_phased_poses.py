"""Runs that refine poses for a part of their time: phases, engines, and where the cameras of graph engines are."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import cast

import pytest
import torch

from raymine.contracts import StepReport
from raymine.engines import ahead, choice, phases_of
from raymine.engines.phased import Phase, PhasedEngine
from raymine.engines.plain import PlainEngine, draws_on_device
from raymine.step import TrainConfig, TrainData, TrainState, create_state
from raymine.step.config import BatchConfig
from raymine.step.poses import PoseConfig
from raymine.step.schedule import ProgressiveConfig
from support.device import requires_gpu
from support.scenes import ball_scene
from support.step import CONFIG

CPU = torch.device("cpu")
DATA = ball_scene()[1]
HALF = PoseConfig(fade=0.2, until=0.5)
REFINED = replace(CONFIG, poses=HALF)


def fresh(config: TrainConfig = REFINED, horizon: int = 20) -> TrainState:
    state = create_state(config, DATA, seed=0, device=CPU)
    state.horizon = horizon
    return state


def trained(state: TrainState, until: int) -> None:
    engine = choice.engine_for(state, DATA)
    engine.warm_up()
    while state.step < until:
        engine.advance(until - state.step)


def test_phases_of_a_run_with_poses() -> None:
    assert phases_of(REFINED) == [Phase(0.5, refining=True), Phase(1.0)]
    assert phases_of(replace(CONFIG, poses=PoseConfig(until=1.0))) == [Phase(1.0, refining=True)]
    small = replace(REFINED, progressive=ProgressiveConfig((4, 2), (0.3, 0.6)))
    assert [(each.until, each.factor, each.refining) for each in phases_of(small)] == [
        (0.3, 4, True), (0.5, 2, True), (0.6, 2, False), (1.0, 1, False),
    ]  # fmt: skip
    assert [each.config(REFINED).poses for each in phases_of(REFINED)] == [HALF, None]


def test_engine_of_a_grown_horizon_goes_on_without_refinement() -> None:
    config = replace(REFINED, progressive=ProgressiveConfig((2,), (0.2,)))
    state = fresh(config)
    engine = choice.engine_for(state, DATA)
    assert isinstance(engine, PhasedEngine)
    while state.step < 12:
        engine.advance(12 - state.step)
    assert engine.phase == Phase(1.0)
    state.horizon = 1000
    assert engine.phase == Phase(1.0), "neither refined poses nor small images come back"
    engine.advance(1)
    assert state.scalars()["poses.ended"] == 10


@pytest.mark.parametrize("until", [0.25, 0.5, 0.75])
def test_resumed_before_at_or_after_the_end_it_gives_the_same_bits(until: float) -> None:
    config = replace(CONFIG, poses=PoseConfig(fade=0.2, until=until))
    whole, half, rest = fresh(config), fresh(config), fresh(config)
    trained(whole, 20)
    trained(half, 10)
    rest.restore({name: value.clone() for name, value in half.tensors().items()}, half.scalars())
    trained(rest, 20)
    assert rest.scalars() == whole.scalars()
    for name, value in whole.tensors().items():
        assert torch.equal(value, rest.tensors()[name]), name


def test_warm_up_takes_the_path_of_the_step_that_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def train_step(state: TrainState, data: TrainData, draw: object) -> None:
        seen.append(state.refining)

    monkeypatch.setattr("raymine.engines.plain.train_step", train_step)
    for refining in (True, False):
        PlainEngine(fresh(), DATA, "", refining=refining).warm_up()
    assert seen == [True, True, False, False]


def test_device_draws_rays_of_refined_poses_unless_images_are_there_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raymine.engines.plain.triton_problem", lambda: "")
    banded = replace(REFINED, image_memory=6000)
    assert [draws_on_device(each.config(REFINED), "cuda") for each in phases_of(REFINED)] == [True, True]
    assert [draws_on_device(each.config(banded), "cuda") for each in phases_of(banded)] == [False, True]


def test_a_run_is_compiled_ahead_for_its_last_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TrainConfig] = []

    def problem_with(config: TrainConfig, *_: object, **__: object) -> str:
        asked.append(config)
        return "not here"

    monkeypatch.setattr(ahead, "problem_with", problem_with)
    ahead.compile_ahead(REFINED, DATA.rig, DATA.bounds, False, CPU)
    assert [config.poses for config in asked] == [None]


# Below: graph engines, on a GPU or in Triton's interpreter.
triton = pytest.importorskip("triton")

from raymine.engines.captured import CapturedTrainer  # noqa: E402
from raymine.engines.fused import rotation  # noqa: E402
from raymine.engines.fused.engine import FusedEngine  # noqa: E402
from raymine.engines.fused.images import DeviceImages  # noqa: E402
from raymine.engines.fused.rays import DeviceRays  # noqa: E402
from raymine.engines.fused.rotating_images import RotatingImages  # noqa: E402
from support.fused import CONFIG as SMALL  # noqa: E402
from support.fused import DEVICE, data_on  # noqa: E402

SMALL_REFINED = replace(SMALL, poses=HALF, batch=BatchConfig(samples=192, max_rays=192))


def with_twists(config: TrainConfig, data: TrainData) -> TrainState:
    """A state whose poses have moved, and whose twists have momentum."""
    state = create_state(config, data, seed=3, device=DEVICE)
    state.rays, state.horizon = 12, 4
    with torch.no_grad():
        for name in ("poses.twist", "adam.first.poses.twist"):
            value = state.tensors()[name]
            value.copy_(0.05 * torch.randn(value.shape, generator=torch.Generator().manual_seed(1)))
    return state


def refined_rays(state: TrainState, data: TrainData) -> torch.Tensor:
    """[R, 6]: origins and directions of the next step, as rays of the given cameras that are moved."""
    assert state.poses is not None
    pixels, _ = state.pixels.draw(state.rays, state.seed, state.step)
    image, y, x = (part.to(DEVICE) for part in pixels)
    rays = state.poses.refine(data.rig.rays_for_pixels(image, x, y), image)
    return torch.cat((rays.origins, rays.directions), 1).detach()


def test_fused_engine_takes_over_with_rays_of_the_moved_poses(monkeypatch: pytest.MonkeyPatch) -> None:
    def problem_with(config: TrainConfig, *_: object, **__: object) -> str:
        return "poses are refined" if config.poses is not None else ""

    monkeypatch.setattr(choice, "problem_with", problem_with)
    data = data_on(DEVICE)
    given = data.rig.table.clone()
    state = with_twists(SMALL_REFINED, data)
    engine = choice.engine_for(state, data)
    assert isinstance(engine, PhasedEngine)
    assert (engine.name, engine.reason) == (
        ("captured, then fused" if DEVICE.type == "cuda" else "plain, then fused"),
        "poses are refined",
    )
    fused = cast("FusedEngine", engine.engines[1]).trainer
    fused.draw()  # as when the engine is warmed up, with the given cameras
    rig = fused.rays.images.rig
    place = rig.data_ptr()
    while state.step < 2:
        engine.advance(4)
    assert torch.equal(rig, given)
    before = state.tensors()["poses.twist"].clone()
    assert [report.step for report in engine.advance(1)] == [2]
    assert state.scalars()["poses.ended"] == 2
    fused.draw()
    expected = refined_rays(state, data)
    assert torch.allclose(fused.buffers.rays[: state.rays, :6], expected, atol=1e-5)
    moved = data.rig.at_poses(state.poses.moved(data.rig.poses))  # type: ignore[union-attr]
    assert torch.allclose(rig, moved.table, atol=1e-6)
    assert float((rig - given).abs().max()) > 0.01
    assert rig.data_ptr() == place, "a graph reads the same memory"
    assert torch.equal(data.rig.table, given), "the cameras of the host stay, since every evaluation moves their rays"
    assert torch.equal(state.tensors()["poses.twist"], before)
    # A restored state may have other poses.
    with torch.no_grad():
        tensors = {name: value.clone() for name, value in state.tensors().items()}
        tensors["poses.twist"].mul_(-0.5)
    state.restore(tensors, state.scalars())
    engine.advance(1)
    fused.draw()
    assert torch.allclose(fused.buffers.rays[: state.rays, :6], refined_rays(state, data), atol=1e-5)


def test_graph_engine_that_has_seen_the_last_refined_step_notices_the_end() -> None:
    data = data_on(DEVICE)
    state = with_twists(SMALL_REFINED, data)
    trainer = CapturedTrainer(state, data)  # takes the state as it is, with poses that are refined
    assert state.poses is not None
    state.poses.end(1)
    trainer.advance(1)
    placed = state.poses.placed(data.rig).table
    assert torch.equal(trainer.rays.images.rig, placed)
    assert float((placed - data.rig.table).abs().max()) > 0.01


def test_engines_of_a_run_share_pixels_and_have_cameras_of_their_own() -> None:
    data = data_on(DEVICE)
    one, other = DeviceImages(data, DEVICE), DeviceImages(data, DEVICE)
    assert one.pixels.data_ptr() == other.pixels.data_ptr()
    assert one.rig.data_ptr() != other.rig.data_ptr()
    copied = DeviceImages(replace(data, images=copy.copy(data.images)), DEVICE)
    assert torch.equal(copied.pixels, one.pixels)
    assert copied.pixels.data_ptr() != one.pixels.data_ptr(), "another source is loaded anew"


def test_plain_step_draws_the_rays_of_moved_poses_on_the_device() -> None:
    data = data_on(DEVICE)
    state = with_twists(SMALL_REFINED, data)
    drawn = DeviceRays(state, data)
    assert state.poses is not None
    state.poses.end(2)
    rays = drawn.batch(state, data).rays
    assert torch.allclose(torch.cat((rays.origins, rays.directions), 1), refined_rays(state, data), atol=1e-5)
    assert not rays.origins.requires_grad


def test_cameras_of_the_window_move_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "BAND", 96)
    data = data_on(DEVICE)
    state = with_twists(replace(SMALL_REFINED, image_memory=6000), data)
    assert state.poses is not None
    state.poses.end(2)
    placed = state.poses.placed(data.rig)
    moved, anew = (RotatingImages(each, state.pixels, 3, 6000, DEVICE) for each in (data, replace(data, rig=placed)))
    step = 5 * rotation.STEPS
    moved.prepare(step)
    place = moved.rig.data_ptr()
    moved.place_cameras(placed.table)
    anew.prepare(step)
    assert torch.equal(moved.rig, anew.rig)
    assert moved.rig.data_ptr() == place
    for images in (moved, anew):
        images.prepare(step + rotation.STEPS)
    assert torch.equal(moved.rig, anew.rig), "also of bands that come later"


def test_captured_step_leaves_twists_with_momentum_where_they_are() -> None:
    data = data_on(DEVICE)
    state = with_twists(SMALL_REFINED, data)
    assert state.poses is not None
    state.poses.end(2)
    trainer = CapturedTrainer(state, data)
    before = state.tensors()["poses.twist"].clone()
    table = state.tensors()["field.table"].clone()
    trainer.advance(1)
    assert torch.equal(state.tensors()["poses.twist"], before)
    assert not torch.equal(state.tensors()["field.table"], table)


@requires_gpu
def test_captured_graph_of_the_fused_step_reads_the_moved_cameras() -> None:
    data = data_on(DEVICE)
    state = create_state(replace(SMALL, poses=PoseConfig()), data, seed=0, device=DEVICE)
    state.horizon = 400
    engine = choice.engine_for(state, data)
    engine.warm_up()
    assert state.scalars()["step"] == 0
    assert isinstance(engine, PhasedEngine)
    assert engine.name == ("captured, then fused" if DEVICE.type == "cuda" else "plain, then fused")
    fused = cast("FusedEngine", engine.engines[1]).trainer
    graphs = dict(fused._graphs)
    assert "step" in graphs
    while state.step < 240:
        engine.advance(240 - state.step)
    twist = state.tensors()["poses.twist"].clone()
    reports: list[StepReport] = []
    while state.step < 400:
        expected, rays = refined_rays(state, data), state.rays
        reports += engine.advance(1)
        assert torch.allclose(fused.buffers.rays[:rays, :6], expected, atol=1e-5)
    grown = any(report.lost for report in reports)
    assert grown or fused._graphs["step"] is graphs["step"]
    assert torch.equal(state.tensors()["poses.twist"], twist)
    assert float(twist.abs().max()) > 0
    assert all(report.finite for report in reports)
    assert sum(r.mse for r in reports[-20:]) < sum(r.mse for r in reports[:20])

"""The captured engine: plain torch on buffers of a fixed size trains as the plain step does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from raymine.contracts import Group, Term
from raymine.engines import choice
from raymine.engines.fused.rays import DeviceRays
from raymine.fields import HashField
from raymine.fields.plane_field import PlaneFieldConfig
from raymine.fields.voxel_field import VoxelFieldConfig
from raymine.kernels import dispatch
from raymine.losses import FreeSpaceLoss, TotalVariation
from raymine.mining import HardConfig, MiningConfig
from raymine.pixels import PixelConfig
from raymine.step import TrainState, create_state, train_step
from raymine.step.poses import PoseConfig
from support.device import forbidden_to_wait, requires_gpu
from support.fused import CONFIG, DEVICE, GPU, data_on

pytest.importorskip("triton")

from raymine.engines.captured import CapturedEngine, CapturedTrainer

POLICIES = ("none", "prune", "hard")
DATA = data_on(DEVICE)


def fresh(policy: str, **changes: object) -> TrainState:
    mining = MiningConfig(policy=policy, hard=HardConfig(draw="poisson"))  # type: ignore[arg-type]
    config = replace(CONFIG, engine="captured", mining=mining, **changes)  # type: ignore[arg-type]
    state = create_state(config, DATA, seed=3, device=DEVICE)
    state.rays = 256 if GPU else 10
    state.horizon = 100
    torch.manual_seed(0)
    with torch.no_grad():
        # A field with something in it: parameters of a fresh one are close to 0.
        state.module.table.copy_(torch.randn_like(state.module.table))
    return state


@pytest.mark.parametrize("policy", POLICIES)
def test_captured_step_is_the_plain_step(policy: str) -> None:
    captured, plain = fresh(policy), fresh(policy)
    trainer, draw = CapturedTrainer(captured, DATA), DeviceRays(plain, DATA).batch
    for _ in range(3):
        (got,), expected = trainer.advance(1), train_step(plain, DATA, draw)
        assert (got.rays, got.marched, got.step) == (expected.rays, expected.marched, expected.step)
        if not (GPU and policy == "hard"):  # on CUDA the plain step counts the room that a selection had
            assert got.trained == pytest.approx(expected.trained, rel=0.02, abs=2)
        assert got.loss == pytest.approx(expected.loss, rel=1e-3)
        assert got.mse == pytest.approx(expected.mse, rel=1e-3)
        assert got.learning_rate == pytest.approx(expected.learning_rate, rel=1e-5)
        assert captured.rays == plain.rays
    for name, value in plain.tensors().items():
        if name.startswith(("field.", "adam.")):
            distance = (captured.tensors()[name] - value).norm() / value.norm().clamp_min(1e-12)
            assert float(distance) < 0.02, name


@pytest.mark.parametrize("policy", POLICIES)
def test_captured_step_refines_poses_as_the_plain_step_does(policy: str) -> None:
    captured, plain = (fresh(policy, poses=PoseConfig(until=1.0, fade=0.0)) for _ in range(2))
    with torch.no_grad():
        for state in (captured, plain):
            twist = state.tensors()["poses.twist"]
            twist.copy_(0.05 * torch.randn(twist.shape, generator=torch.Generator().manual_seed(1)))
    trainer, draw = CapturedTrainer(captured, DATA, refining=True), DeviceRays(plain, DATA).batch
    before = captured.tensors()["poses.twist"].clone()
    for step in range(3):
        (got,), expected = trainer.advance(1), train_step(plain, DATA, draw)
        assert (got.rays, got.marched) == (expected.rays, expected.marched)
        assert got.loss == pytest.approx(expected.loss, rel=1e-3)
        assert got.extra["pose_degrees"] == pytest.approx(expected.extra["pose_degrees"], rel=1e-3)
        if step == 0:
            # A moment after one step is a share of the gradient.
            one, other = (state.tensors()["adam.first.poses.twist"] for state in (captured, plain))
            assert float((one - other).norm() / other.norm()) < 0.02
    for name, value in plain.tensors().items():
        if name.startswith(("field.", "poses.")):
            distance = (captured.tensors()[name] - value).norm() / value.norm().clamp_min(1e-12)
            assert float(distance) < 0.02, name
    assert float((captured.tensors()["poses.twist"] - before).abs().max()) > 1e-4
    if GPU:
        assert "step" in trainer._graphs, "nothing in the step waits for the device"


def test_learning_rate_of_poses_falls_on_the_device_as_in_the_plain_step() -> None:
    captured, plain = (fresh("none", poses=PoseConfig(until=0.8, fade=0.0, final=0.01)) for _ in range(2))
    trainer, draw = CapturedTrainer(captured, DATA, refining=True), DeviceRays(plain, DATA).batch
    assert plain.poses is not None
    captured.horizon = plain.horizon = 5
    for step in range(4):
        assert float(trainer._pose_rate(plain.poses.config)[2]) == pytest.approx(0.01 ** (0.5 * max(0, step - 2)))
        trainer.advance(1)
        train_step(plain, DATA, draw)
    one, other = (state.tensors()["poses.twist"] for state in (captured, plain))
    assert float((one - other).norm() / other.norm()) < 0.02


def test_grid_is_first_updated_when_the_sampler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = replace(CONFIG.sampler, every=2, start=3, full_steps=3)  # type: ignore[type-var]
    seen: list[tuple[int, bool]] = []
    update = CapturedTrainer.update_cells

    def noted(trainer: CapturedTrainer, step: int, everything: bool) -> None:
        seen.append((step, everything))
        update(trainer, step, everything)

    monkeypatch.setattr(CapturedTrainer, "update_cells", noted)
    state = fresh("none", sampler=sampler)
    engine = CapturedEngine(state, DATA, "")
    assert bool(engine.trainer.grid.bytes.all())
    engine.warm_up()
    assert seen == [(4, True)], "its kernels are compiled before the clock runs"
    assert state.step == 0
    assert bool(engine.trainer.grid.bytes.all())
    seen.clear()
    for _ in range(8):
        engine.advance(1)
    assert seen == [(4, True), (6, False)]


def test_corrections_that_a_captured_step_finds_stay_within_their_limits() -> None:
    state = fresh("none", poses=PoseConfig(until=1.0, fade=0.0, limit_degrees=0.01, limit_distance=1e-4))
    trainer = CapturedTrainer(state, DATA, refining=True)
    trainer.advance(2)
    assert state.poses is not None
    degrees, distance = state.poses.sizes()
    assert float(degrees.max()) == pytest.approx(0.01, rel=1e-4)
    assert float(distance.max()) == pytest.approx(1e-4, rel=1e-4)
    assert state.poses.at_limit()


def test_captured_step_obeys_rate_and_decay_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def groups(self: HashField) -> list[Group]:
        layers = {name: value for name, value in self.named_parameters() if name != "table"}
        return [Group("table", {"table": self.table}, rate=0.5, sparse=True), Group("network", layers, rate=0.0)]

    monkeypatch.setattr(HashField, "groups", groups)
    captured, plain = fresh("none"), fresh("none")
    before = {name: value.clone() for name, value in captured.tensors().items()}
    trainer = CapturedTrainer(captured, DATA)
    trainer.advance(1)
    train_step(plain, DATA, DeviceRays(plain, DATA).batch)
    assert torch.equal(before["field.density_layers.0"], captured.tensors()["field.density_layers.0"])
    moved = captured.tensors()["field.table"] - before["field.table"]
    wanted = plain.tensors()["field.table"] - before["field.table"]
    assert float(moved.abs().max()) > 0
    assert float((moved - wanted).norm() / wanted.norm()) < 0.02


@pytest.mark.parametrize(
    "term", [TotalVariation(0.1), FreeSpaceLoss(weight=3.0, count=64)], ids=lambda it: type(it).__name__
)
def test_captured_step_adds_the_gradient_of_terms_over_parameters(term: Term) -> None:
    field = PlaneFieldConfig(resolutions=(4, 8), features=4, width=16)
    mining = MiningConfig(policy="hard", hard=HardConfig(draw="poisson"))
    loss = (*CONFIG.loss, term)
    config = replace(CONFIG, engine="captured", mining=mining, field=field, loss=loss)
    captured, plain = (create_state(config, DATA, seed=3, device=DEVICE) for _ in range(2))
    for state in (captured, plain):
        state.rays, state.horizon = 256 if GPU else 10, 100
    trainer, draw = CapturedTrainer(captured, DATA), DeviceRays(plain, DATA).batch
    for _ in range(3):
        trainer.advance(1)
        train_step(plain, DATA, draw)
    if GPU:
        assert "step" in trainer._graphs, "nothing in the step waits for the device"
    for name, value in plain.tensors().items():
        if name.startswith(("field.", "adam.first")):
            distance = (captured.tensors()[name] - value).norm() / value.norm().clamp_min(1e-12)
            assert float(distance) < 0.02, name


def test_captured_step_lets_the_field_move_its_rows() -> None:
    field = VoxelFieldConfig(resolutions=(6, 11), grow_at=(2,), rows=1500, start=2.0)
    mining = MiningConfig(policy="hard", hard=HardConfig(draw="poisson"))
    config = replace(CONFIG, engine="captured", mining=mining, field=field)
    captured, plain = (create_state(config, DATA, seed=3, device=DEVICE) for _ in range(2))
    for state in (captured, plain):
        state.rays, state.horizon = 256 if GPU else 10, 100
    trainer, draw = CapturedTrainer(captured, DATA), DeviceRays(plain, DATA).batch
    # On a CPU the gradient of the tables would be sparse; Triton's is dense.
    with dispatch.force("gpu"):
        trainer.advance(4)
        for _ in range(4):
            train_step(plain, DATA, draw)
    assert captured.scalars()["field.resolution"] == plain.scalars()["field.resolution"] == 11
    for name, value in plain.tensors().items():
        if name.startswith(("field.", "adam.")):
            distance = (captured.tensors()[name] - value).float().norm() / value.float().norm().clamp_min(1e-12)
            assert float(distance) < 0.02, name


def test_room_of_the_second_pass_follows_what_is_chosen() -> None:
    state = fresh("hard")
    trainer = CapturedTrainer(state, DATA)
    assert trainer._places <= trainer.buffers.capacity
    trainer._places = 8
    (report,) = trainer.advance(1)
    assert report.trained == 8, "no more than there was room for"
    assert trainer._places > 8
    (report,) = trainer.advance(1)
    assert 8 < report.trained <= trainer._places


def test_engine_is_captured_where_shapes_are_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "triton_problem", lambda: "")

    def problem(state: TrainState) -> str:
        state.device = torch.device("cuda")
        return choice.capture_problem(state, state.config)

    assert problem(fresh("hard")) == ""
    assert "by their errors, on the host" in problem(fresh("hard", pixels=PixelConfig(policy="error")))
    assert "recomputed" in problem(fresh("hard", recompute_samples=100))
    state = fresh("hard")
    state.config = replace(state.config, engine="plain")
    assert problem(state) == "the plain step was asked for"


@requires_gpu
@pytest.mark.parametrize("policy", POLICIES)
def test_captured_engine_learns_without_waiting(policy: str) -> None:
    state = fresh(policy)
    engine = choice.engine_for(state, DATA)
    assert isinstance(engine, CapturedEngine)
    first = engine.advance(16)
    for _ in range(10):
        reports = engine.advance(16)
    assert state.step == 176
    assert reports[-1].mse < 0.3 * first[0].mse
    assert not reports[-1].lost
    trainer = engine.trainer
    with forbidden_to_wait():
        trainer._replay("step", trainer.run_stages)


@requires_gpu
def test_field_that_reads_numbers_back_trains_without_a_graph(caplog: pytest.LogCaptureFixture) -> None:
    class Reads(HashField):
        def forward(self, query):  # type: ignore[no-untyped-def]
            assert bool(self.table.detach().isfinite().all())
            return super().forward(query)

    state = fresh("hard")
    state.module.__class__ = Reads
    trainer = CapturedTrainer(state, DATA)
    reports = [report for _ in range(4) for report in trainer.advance(4)]
    assert len(reports) == 16
    assert all(report.finite for report in reports)
    assert "not captured in a CUDA graph" in caplog.text

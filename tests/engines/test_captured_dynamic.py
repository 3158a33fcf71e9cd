"""The captured engine on a scene that moves: rays are drawn on the device with the times of their images."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from raymine.engines import PlainEngine, choice
from raymine.fields.dynamic_field import DynamicFieldConfig
from raymine.fields.motion import MotionConfig
from raymine.kernels.hash_grid.op import GridSpec
from raymine.mining import HardConfig, MiningConfig
from raymine.pixels import PixelConfig
from raymine.step import TrainState, create_state, train_step
from raymine.step.batch import draw_batch
from support.device import forbidden_to_wait, requires_gpu
from support.fused import CONFIG, DEVICE, GPU
from support.moving_scene import moving_data, moving_scene

pytest.importorskip("triton")

from raymine.engines.captured import CapturedEngine, CapturedTrainer
from raymine.engines.fused.rays import DeviceRays

DATA = moving_data(moving_scene(8), DEVICE)
MOTION = MotionConfig(width=16, depth=2, features=4, position_frequencies=2, time_frequencies=2)
GRIDS = replace(MOTION, encoding="grids", grid=GridSpec(levels=2, features=2, log2_entries=8, base=4, finest=8))
OFTEN = replace(CONFIG.sampler, every=2)  # type: ignore[type-var]
FIELD = DynamicFieldConfig(CONFIG.field.grid, width=16, motion=MOTION)  # type: ignore[attr-defined]


def fresh(policy: str = "hard", **changes: object) -> TrainState:
    mining = MiningConfig(policy=policy, hard=HardConfig(draw="poisson"))  # type: ignore[arg-type]
    config = replace(CONFIG, **{"field": FIELD, "mining": mining, **changes})  # type: ignore[arg-type]
    state = create_state(config, DATA, seed=3, device=DEVICE)
    state.rays = 256 if GPU else 10
    state.horizon = 400
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        # Parameters of a fresh field are close to 0: give it something to see, and motion that is no rounding error.
        state.module.table.copy_(torch.randn(state.module.table.shape, generator=generator))
        state.module.motion.layers[-1].mul_(50)
    return state


@pytest.mark.parametrize("policy", ["uniform", "edges"])
def test_rays_drawn_on_the_device_have_the_times_of_their_images(policy: str) -> None:
    state = fresh(pixels=PixelConfig(policy=policy))  # type: ignore[arg-type]
    expected, found = draw_batch(state, DATA), DeviceRays(state, DATA).batch(state, DATA)
    assert expected.rays.time is not None
    assert found.rays.time is not None
    assert torch.equal(found.rays.time, expected.rays.time)
    assert len(found.rays.time.unique()) > 3
    assert torch.allclose(found.rays.directions, expected.rays.directions, atol=1e-6)


def test_query_of_a_captured_step_has_the_time_of_the_ray_of_each_sample() -> None:
    state = fresh()
    trainer = CapturedTrainer(state, DATA)
    trainer.buffers.wanted.fill_(float("nan"))
    trainer.draw()
    n = state.rays
    ray_id = torch.tensor([0, 0, n - 1, 1], dtype=torch.int32, device=DEVICE)
    t = torch.ones(4, device=DEVICE)
    time = draw_batch(state, DATA).rays.time
    assert time is not None
    assert torch.equal(trainer._query(ray_id, t, t).time, time[ray_id.long()])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "motion"), [("none", MOTION), ("prune", MOTION), ("hard", MOTION), ("hard", GRIDS)],
    ids=["none", "prune", "hard", "hard with grids"],
)  # fmt: skip
def test_captured_step_of_a_moving_scene_is_the_plain_step(policy: str, motion: MotionConfig) -> None:
    captured, plain = (fresh(policy, field=replace(FIELD, motion=motion), sampler=OFTEN) for _ in range(2))
    trainer, draw = CapturedTrainer(captured, DATA), DeviceRays(plain, DATA).batch
    for _ in range(3):  # with an update of the occupancy grid, which asks the field at random times
        (got,), expected = trainer.advance(1), train_step(plain, DATA, draw)
        assert (got.rays, got.marched) == (expected.rays, expected.marched)
        assert got.loss == pytest.approx(expected.loss, rel=1e-3)
    assert captured.sampler.swept
    for name, value in plain.tensors().items():
        if name.startswith(("field.", "sampler.")):
            distance = (captured.tensors()[name] - value).norm() / value.norm().clamp_min(1e-12)
            assert float(distance) < 0.02, name


def test_moving_scene_can_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "triton_problem", lambda: "")
    state = fresh()
    state.device = torch.device("cuda")
    assert choice.capture_problem(state, state.config) == ""


@requires_gpu
@pytest.mark.parametrize("amp", ["fp32", "fp16"])
def test_captured_engine_learns_a_moving_scene_as_the_plain_one_does(amp: str) -> None:
    losses = []
    for wish in ("captured", "plain"):
        state = fresh(engine=wish, amp=amp)
        engine = choice.engine_for(state, DATA)
        assert isinstance(engine, CapturedEngine if wish == "captured" else PlainEngine)
        reports = [report for _ in range(300 if wish == "plain" else 20) for report in engine.advance(15)]
        assert all(report.finite for report in reports)
        # The rays of a single step differ too much from those of another one.
        assert sum(report.mse for report in reports[250:300]) / 50 < 0.3 * reports[0].mse
        losses.append(sum(report.mse for report in reports[250:300]))
        if wish == "captured":
            with forbidden_to_wait():
                engine.trainer._replay("step", engine.trainer.run_stages)  # type: ignore[attr-defined]
            assert "step" in engine.trainer._graphs  # type: ignore[attr-defined]
    assert losses[0] == pytest.approx(losses[1], rel=0.3)

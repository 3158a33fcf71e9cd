"""Which engine takes a state: the fused one where it can, the plain one with a reason elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from raymine import recipes
from raymine.experiment import TrainRequest
from raymine.experiment import prepare as preparing
from raymine.fused import engine_for, problem, problem_with, renderer_for
from raymine.kernels import dispatch
from raymine.mining import HardConfig, MiningConfig
from raymine.pixels import PixelConfig
from raymine.render import VolumeRenderer
from raymine.step import TrainConfig, create_state
from scenes_for_tests import ball_scene
from test_step import CONFIG

SCENE, DATA = ball_scene()
CUDA = recipes.build("ngp", SCENE, "cuda")


@pytest.fixture
def _with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were a GPU."""
    monkeypatch.setattr(problem, "triton_problem", lambda: "")
    monkeypatch.setattr(dispatch, "triton_problem", lambda: "")


def test_on_a_cpu_the_plain_engine_runs_one_step_at_a_time() -> None:
    state = create_state(CONFIG, DATA, seed=0, device=torch.device("cpu"))
    engine = engine_for(state, DATA)
    assert (engine.name, engine.reason) == ("plain", "the fused step runs on CUDA, not on cpu")
    assert [report.step for report in engine.advance(16)] == [0]
    assert state.step == 1
    assert isinstance(engine.renderer(), VolumeRenderer)
    assert isinstance(renderer_for(state), VolumeRenderer)


@pytest.mark.usefixtures("_with_triton")
@pytest.mark.parametrize(
    ("config", "training", "reason"),
    [
        (CUDA, True, ""),
        (replace(CUDA, field=replace(CUDA.field, width=200)), True, "up to 128 wide"),
        (replace(CUDA, field=replace(CUDA.field, colour_layers=4)), False, "3 colour layers"),
        (replace(CUDA, mining=MiningConfig(hard=HardConfig(draw="systematic"))), True, ""),
        (replace(CUDA, pixels=PixelConfig(policy="edges")), True, ""),
        (replace(CUDA, pixels=PixelConfig(policy="error+edges")), True, "not by error+edges"),
        (replace(CUDA, optimiser=replace(CUDA.optimiser, beta1=0.0)), True, "optimiser.beta1 is 0"),
        (replace(CUDA, pixels=PixelConfig(policy="error")), False, ""),
    ],
)
def test_what_the_fused_step_cannot_take_is_named(config: TrainConfig, training: bool, reason: str) -> None:
    found = problem_with(config, "cuda", training=training)
    assert reason in found if reason else found == ""


@pytest.mark.usefixtures("_with_triton")
def test_auto_takes_the_cpu_where_a_gpu_would_be_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(preparing, "load_scene", lambda *_, **__: SCENE)
    monkeypatch.setattr(preparing, "scene_digest", lambda _: "digest")
    fast = preparing.prepare(TrainRequest("ball", device="auto", steps=1))
    assert fast.device.type == fast.config.device == "cuda"
    slow = preparing.prepare(TrainRequest("ball", device="auto", steps=1, overrides={"pixels.policy": "error"}))
    assert slow.device.type == slow.config.device == "cpu"
    assert (
        slow.scene.decisions[-1] == "Device: cpu, because the fused step draws pixels evenly or by edges, not by error."
    )
    asked = preparing.prepare(TrainRequest("ball", device="cuda", steps=1, overrides={"pixels.policy": "error"}))
    assert asked.device.type == "cuda"


def test_a_recipe_that_is_another_one_here_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "load_scene", lambda *_, **__: SCENE)
    monkeypatch.setattr(preparing, "scene_digest", lambda _: "digest")
    large = preparing.prepare(TrainRequest("ball", "ngp-large", device="cpu", steps=1))
    assert large.scene.decisions[-1] == "Recipe: on a CPU `ngp-large` is the same as `ngp`."
    plain = preparing.prepare(TrainRequest("ball", "ngp", device="cpu", steps=1))
    assert not any("Recipe" in decision for decision in plain.scene.decisions)

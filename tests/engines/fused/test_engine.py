"""Choice of the engine: the fused one where it supports the config, otherwise the plain one with a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from raymine import recipes
from raymine.engines import engine_for, problem_with, renderer_for
from raymine.engines.fused import problem
from raymine.experiment import TrainRequest
from raymine.experiment import prepare as preparing
from raymine.kernels import dispatch
from raymine.losses import CoarseColourLoss, ColourLoss
from raymine.mining import HardConfig, MiningConfig
from raymine.pixels import PixelConfig
from raymine.render import VolumeRenderer
from raymine.step import TrainConfig, create_state
from raymine.step.exposure import ExposureConfig
from raymine.step.poses import PoseConfig
from support.scenes import ball_scene
from support.step import CONFIG

SCENE, DATA = ball_scene()
CUDA = recipes.build("ngp", SCENE, "cuda")


@pytest.fixture
def _with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that Triton works on this machine."""
    monkeypatch.setattr(problem, "triton_problem", lambda: "")
    monkeypatch.setattr(dispatch, "triton_problem", lambda: "")


def test_cpu_uses_the_plain_engine_one_step_at_a_time() -> None:
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
        (replace(CUDA, engine="plain"), True, "the plain step was asked for"),
        (replace(CUDA, engine="plain"), False, ""),
        (replace(CUDA, loss=(ColourLoss(), CoarseColourLoss())), True, "the loss has CoarseColourLoss"),
        (replace(CUDA, pixels=PixelConfig(policy="edges")), True, ""),
        (replace(CUDA, pixels=PixelConfig(policy="error+edges")), True, "not by error+edges"),
        (replace(CUDA, optimiser=replace(CUDA.optimiser, beta1=0.0)), True, "optimiser.beta1 is 0"),
        (replace(CUDA, pixels=PixelConfig(policy="error")), False, ""),
        (replace(CUDA, poses=PoseConfig()), True, "no gradients for poses, which are refined"),
        (replace(CUDA, poses=PoseConfig(), engine="captured"), True, "no gradients for poses"),
        (replace(CUDA, exposure=ExposureConfig()), True, "know no exposure of images"),
        (replace(CUDA, poses=PoseConfig(), exposure=ExposureConfig()), False, ""),
    ],
)
def test_problem_with_names_unsupported_settings(config: TrainConfig, training: bool, reason: str) -> None:
    found = problem_with(config, "cuda", training=training)
    assert reason in found if reason else found == ""


@pytest.mark.usefixtures("_with_triton")
def test_auto_device_is_cuda_with_either_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (2**37, 2**37))
    monkeypatch.setattr(preparing, "load_scene", lambda *_, **__: SCENE)
    monkeypatch.setattr(preparing, "scene_digest", lambda _: "digest")
    fast = preparing.prepare(TrainRequest("ball", device="auto", steps=1))
    assert fast.device.type == fast.config.device == "cuda"
    plain = preparing.prepare(TrainRequest("ball", device="auto", steps=1, overrides={"pixels.policy": "error"}))
    assert plain.device.type == plain.config.device == "cuda"


def test_recipe_that_equals_another_on_cpu_is_reported_and_recorded_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "load_scene", lambda *_, **__: SCENE)
    monkeypatch.setattr(preparing, "scene_digest", lambda _: "digest")
    large = preparing.prepare(TrainRequest("ball", "ngp-large", device="cpu", steps=1))
    assert large.scene.decisions[-1] == "Recipe: on a CPU `ngp-large` is `ngp`, and the run is recorded as that."
    assert large.config.recipe == "ngp"
    # A run that an earlier version recorded as ngp-large keeps its name, and can be resumed.
    before = replace(large.config, recipe="ngp-large")
    assert preparing.prepare(TrainRequest("ball", "ngp-large", device="cpu", steps=1), before).config == before
    plain = preparing.prepare(TrainRequest("ball", "ngp", device="cpu", steps=1))
    assert not any("Recipe" in decision for decision in plain.scene.decisions)

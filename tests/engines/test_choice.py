"""The choice of an engine: why a step cannot be captured."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from raymine.engines import choice
from raymine.mining import HardConfig, MiningConfig
from raymine.step import TrainState, create_state
from raymine.step.exposure import ExposureConfig
from raymine.step.poses import PoseConfig
from support.scenes import ball_scene
from support.step import CONFIG

DATA = ball_scene()[1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"poses": PoseConfig()}, ""),
        ({"poses": PoseConfig(), "image_memory": 6000}, "the host draws their rays"),
        ({"poses": PoseConfig(until=1.0)}, "the host draws their rays"),
        ({"exposure": ExposureConfig()}, "exposures are fitted"),
    ],
)
def test_what_is_fitted_beside_the_field_may_keep_a_step_from_being_captured(
    changes: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("choice", "plain"):
        monkeypatch.setattr(f"raymine.engines.{place}.triton_problem", lambda: "")
    monkeypatch.setattr(choice, "closed_form", lambda _: object())
    config = replace(CONFIG, **changes)  # type: ignore[arg-type]
    state = cast("TrainState", SimpleNamespace(config=config, device=torch.device("cuda")))
    found = choice.capture_problem(state, config)
    assert reason in found if reason else found == ""


def test_several_processes_take_the_fused_step_where_each_has_a_gpu() -> None:
    poisson = replace(CONFIG, mining=MiningConfig(hard=HardConfig(draw="poisson")))
    assert choice.ranks_problem(poisson, "nccl") == ""
    assert "share a GPU" in choice.ranks_problem(poisson, "gloo")
    assert choice.ranks_problem(replace(poisson, engine="fused"), "gloo") == ""
    sorting = replace(CONFIG, mining=MiningConfig(hard=HardConfig("topk", "none")))
    assert "the draw topk" in choice.ranks_problem(sorting, "nccl")


def test_plain_engine_trains_them_on_a_cpu() -> None:
    config = replace(CONFIG, poses=PoseConfig(), exposure=ExposureConfig())
    engine = choice.engine_for(create_state(config, DATA, seed=0, device=torch.device("cpu")), DATA)
    assert engine.name == "plain"
    engine.warm_up()
    assert {"pose_degrees", "pose_distance"} <= engine.advance(1)[0].extra.keys()

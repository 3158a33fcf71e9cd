"""The choice of an engine: why a step cannot be captured."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from raymine.engines import choice
from raymine.step import TrainState, create_state
from raymine.step.exposure import ExposureConfig
from raymine.step.poses import PoseConfig
from support.scenes import ball_scene
from support.step import CONFIG

DATA = ball_scene()[1]


@pytest.mark.parametrize("changes", [{"poses": PoseConfig()}, {"exposure": ExposureConfig()}])
def test_poses_and_exposures_are_not_captured(changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "triton_problem", lambda: "")
    monkeypatch.setattr(choice, "closed_form", lambda _: object())
    for config, reason in ((CONFIG, ""), (replace(CONFIG, **changes), "poses or exposures are fitted")):  # type: ignore[arg-type]
        state = cast("TrainState", SimpleNamespace(config=config, device=torch.device("cuda")))
        found = choice.capture_problem(state, config)
        assert reason in found if reason else found == ""


def test_plain_engine_trains_them_on_a_cpu() -> None:
    config = replace(CONFIG, poses=PoseConfig(), exposure=ExposureConfig())
    engine = choice.engine_for(create_state(config, DATA, seed=0, device=torch.device("cpu")), DATA)
    assert engine.name == "plain"
    engine.warm_up()
    assert {"pose_degrees", "pose_distance"} <= engine.advance(1)[0].extra.keys()

"""The plain engine: its warm-up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from raymine.engines import PlainEngine
from raymine.pixels import PixelConfig
from raymine.step import create_state, twin_of
from support.scenes import ball_scene
from support.step import CONFIG

CPU = torch.device("cpu")


@pytest.mark.parametrize("policy", ["edges", "error"])
def test_warm_up_leaves_the_state_as_it_was(policy: str) -> None:
    config = replace(CONFIG, pixels=PixelConfig(policy=policy))  # type: ignore[arg-type]
    _, made = ball_scene()
    state = create_state(config, made, seed=3, device=CPU)
    before = {name: value.clone() for name, value in state.tensors().items()}, state.scalars()
    engine = PlainEngine(state, made, "")
    engine.warm_up()
    after = state.tensors()
    assert state.scalars() == before[1]
    assert [name for name, value in before[0].items() if not torch.equal(value, after[name])] == []
    # Edge maps are computed once; remembered errors are not shared.
    assert (twin_of(state, made).pixels is state.pixels) == (policy == "edges")

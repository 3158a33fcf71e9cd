"""The probe: it has the loss of a training step, whatever that compares with, and the grid that an engine trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from raymine import recipes
from raymine.bench.probe import batch_gradients, next_batch, probe
from raymine.config import replace_fields
from raymine.losses import ColourLoss, DepthLoss, MaskLoss
from raymine.samplers import OccupancySampler
from raymine.step import TrainConfig, create_state, train_step
from raymine.step.exposure import ExposureConfig
from raymine.step.poses import PoseConfig
from support import step as tiny
from support.device import requires_gpu
from support.fused import CONFIG, DEVICE, trainer_for
from support.scenes import ball_scene

CPU = torch.device("cpu")
SCENE, DATA = ball_scene()
SMALL = {"batch.samples": 1024}
SETTINGS: dict[str, TrainConfig] = {
    "exposure": replace(tiny.CONFIG, exposure=ExposureConfig()),
    "poses": replace(tiny.CONFIG, poses=PoseConfig()),
    "mask": replace(tiny.CONFIG, loss=(ColourLoss("l2"), MaskLoss())),
    "depth": replace(tiny.CONFIG, loss=(ColourLoss("l2"), DepthLoss())),
    "vanilla": replace_fields(recipes.build("vanilla", SCENE, "cpu"), SMALL),
    "proposal": replace_fields(recipes.build("proposal", SCENE, "cpu"), SMALL),
}


class Walls:
    """A wall at depth 2 before every camera."""

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> Tensor:
        return torch.full((len(image),), 2.0)


@pytest.mark.parametrize("policy", ["none", "hard"])
@pytest.mark.parametrize("name", SETTINGS)
def test_probe_has_the_loss_of_the_next_step_and_leaves_the_state_as_it_is(name: str, policy: str) -> None:
    data = replace(DATA, depths=Walls())
    config = replace_fields(SETTINGS[name], {"mining.policy": policy, "mining.faint": 0.0})
    state = create_state(config, data, seed=0, device=CPU)
    sampler: Any = state.sampler
    while state.step < 3 or (isinstance(sampler, OccupancySampler) and sampler.due(state.step)):
        train_step(state, data)
    # What a step does before it draws.
    state.fade_levels()
    before = {key: value.clone() for key, value in state.tensors().items()}
    seen = probe(state, data)
    found, _ = batch_gradients(state, next_batch(state, data), faint=0.0)
    assert all(torch.equal(value, before[key]) for key, value in state.tensors().items())
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in state.optimiser.parameters.values())
    done = train_step(state, data)
    assert float(found.loss.total) == pytest.approx(done.loss, rel=1e-4)
    assert seen.diagnosis.samples == done.marched


@requires_gpu
def test_probe_marches_the_grid_that_the_fused_engine_has_trained() -> None:
    trainer = trainer_for()
    state, data = trainer.state, trainer.data
    while state.step < 40:
        trainer.advance(4)
    assert state.sampler.swept
    restored = create_state(CONFIG, data, seed=state.seed, device=DEVICE)
    restored.restore(state.tensors(), state.scalars())
    seen, expected = next_batch(state, data), next_batch(restored, data)
    untrained = OccupancySampler(CONFIG.sampler, data.bounds, DEVICE).sample(expected.rays).samples
    assert len(expected.samples) < len(untrained), "some cells must be empty, or the test shows nothing"
    for name in ("t_start", "t_end", "ray_id", "first", "count"):
        assert torch.equal(getattr(seen.samples, name), getattr(expected.samples, name)), name
    assert probe(state, data).diagnosis.samples == len(expected.samples)

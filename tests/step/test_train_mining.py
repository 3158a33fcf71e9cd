"""Hard sample mining in the training step: exact resume, learning from few samples, agreement of backends."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from raymine.contracts import StepReport
from raymine.fields import HashFieldConfig
from raymine.kernels import dispatch
from raymine.kernels.hash_grid.op import GridSpec
from raymine.mining import PUBLISHED, HardConfig, MiningConfig
from raymine.samplers import OccupancyConfig
from raymine.step import TrainConfig, TrainState, create_state, train_step
from raymine.step.config import BatchConfig
from raymine.step.optimiser import OptimiserConfig
from support.draws import EVERY_DRAW, each_draw, name_of
from support.scenes import ball_scene

CPU = torch.device("cpu")
CONFIG = TrainConfig(
    field=HashFieldConfig(GridSpec(levels=4, features=2, log2_entries=10, base=4, finest=32), width=16),
    sampler=OccupancyConfig(resolution=16, step=0.04, every=4, full_steps=8, cells=1 << 10),
    batch=BatchConfig(samples=1 << 12, max_rays=512),
    optimiser=OptimiserConfig(warmup=10, final=0.3),
    mining=MiningConfig(policy="hard"),
)


def fresh(hard: HardConfig | None = None) -> TrainState:
    config = replace(CONFIG, mining=MiningConfig(policy="hard", hard=hard or HardConfig()))
    state = create_state(config, ball_scene()[1], seed=0, device=CPU)
    state.horizon = 200
    return state


def advance(state: TrainState, n: int) -> list[StepReport]:
    data = ball_scene()[1]
    return [train_step(state, data) for _ in range(n)]


@each_draw
def test_resumed_mined_training_equals_uninterrupted_training(config: HardConfig) -> None:
    whole, first, second = fresh(config), fresh(config), fresh(config)
    expected, found = advance(whole, 40), advance(first, 20)
    second.restore({name: value.clone() for name, value in first.tensors().items()}, first.scalars())
    found += advance(second, 20)
    assert found == expected
    for name, value in whole.tensors().items():
        assert torch.equal(value, second.tensors()[name]), name
    assert all(0 < r.trained < r.marched for r in expected)
    assert all(r.extra["tau"] >= 0.999 for r in expected)


@pytest.mark.parametrize("config", [HardConfig(), HardConfig(draw="poisson"), PUBLISHED], ids=name_of)
def test_mined_training_reaches_20_db_from_less_than_half_of_the_samples(config: HardConfig) -> None:
    reports = advance(fresh(config), 150)
    assert -10 * math.log10(sum(r.mse for r in reports[-10:]) / 10) > 20
    assert sum(r.trained for r in reports[50:]) < 0.5 * sum(r.marched for r in reports[50:])


@pytest.mark.parametrize("config", EVERY_DRAW[:3], ids=name_of)
def test_numba_and_reference_give_the_same_losses_with_mining(config: HardConfig) -> None:
    with dispatch.force("reference"):
        expected = advance(fresh(config), 4)
    found = advance(fresh(config), 4)
    assert [r.rays for r in found] == [r.rays for r in expected]
    assert [r.loss for r in found] == pytest.approx([r.loss for r in expected], rel=1e-3)
    assert [r.trained for r in found] == pytest.approx([r.trained for r in expected], rel=0.02)
    assert [r.extra["tau"] for r in found] == pytest.approx([r.extra["tau"] for r in expected], rel=1e-3)

"""The training step: learning, determinism, resume, non-finite steps, optimiser, losses, and rendering."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from raymine import recipes
from raymine.contracts import Group, StepReport
from raymine.errors import CheckpointError, ConfigError
from raymine.fields import HashFieldConfig
from raymine.kernels import dispatch
from raymine.kernels.hash_grid.op import GridSpec
from raymine.losses import ColourLoss, squared_errors
from raymine.mining import MiningConfig
from raymine.pixels import draw_uniform
from raymine.render import VolumeRenderer
from raymine.step import TrainConfig, TrainState, create_state, train_step
from raymine.step.average import Average
from raymine.step.optimiser import Optimiser, OptimiserConfig
from raymine.step.parts import TensorsPart
from support.scenes import SIZE, MemoryImages, ball_scene
from support.step import CONFIG

CPU = torch.device("cpu")


def fresh(config: TrainConfig = CONFIG, seed: int = 0) -> TrainState:
    state = create_state(config, ball_scene()[1], seed=seed, device=CPU)
    state.horizon = 200
    return state


def advance(state: TrainState, n: int) -> list[StepReport]:
    data = ball_scene()[1]
    return [train_step(state, data) for _ in range(n)]


def assert_same(a: TrainState, b: TrainState) -> None:
    for name, value in a.tensors().items():
        assert torch.equal(value, b.tensors()[name]), name
    assert a.scalars() == b.scalars()


@pytest.fixture(scope="module")
def trained() -> tuple[TrainState, list[StepReport]]:
    """A state after 200 steps with the default policy, and its reports. Tests must not modify it."""
    state = fresh()
    return state, advance(state, 200)


def test_training_raises_psnr_above_22_db_from_few_samples(trained: tuple[TrainState, list[StepReport]]) -> None:
    reports = trained[1]
    start, end = reports[0].mse, sum(r.mse for r in reports[-10:]) / 10
    assert -10 * math.log10(end) > 22 > -10 * math.log10(start) + 8
    assert reports[-1].trained < reports[-1].marched


def test_without_mining_every_marched_sample_is_trained_on() -> None:
    reports = advance(fresh(replace(CONFIG, mining=MiningConfig(policy="none"))), 30)
    assert all(r.trained == r.marched for r in reports)
    assert reports[-1].mse < reports[0].mse


def test_rendering_matches_a_training_view(trained: tuple[TrainState, list[StepReport]]) -> None:
    state, data = trained[0], ball_scene()[1]
    out = state.renderer().render(data.rig.rays_for_image(0), torch.ones(3))
    truth = torch.from_numpy(data.images.image(0)).float().reshape(-1, 4) / 255
    expected = truth[:, :3] * truth[:, 3:] + 1 - truth[:, 3:]
    assert -10 * math.log10(float((out.colour - expected).square().mean())) > 20
    middle = SIZE * SIZE // 2 + SIZE // 2
    assert float(out.opacity[middle]) > 0.95
    assert 2.0 < float(out.depth[middle]) < 3.0  # the front half of a ball of radius 0.8 at distance 3
    assert float(out.opacity[0]) < 0.05
    assert float(out.depth[0]) < 4.0


def test_parameter_average_matches_hand_computation() -> None:
    field = fresh().field
    average = Average(field, 0.25)
    with torch.no_grad():
        for step, value in ((16, 1.0), (17, 9.0), (128, 3.0), (256, 5.0)):
            field.table.fill_(value)
            average.follow(field, step)
    # At step 16 the window is 4 steps, so the average is the field; 17 is skipped; then 16 of 32 and 16 of 64 steps.
    assert torch.equal(average.field.table, torch.full_like(field.table, 1 + (3 - 1) / 2 + (5 - 2) / 4))
    assert not average.field.table.requires_grad


def test_renderer_uses_the_parameter_average_if_enabled() -> None:
    state = fresh()
    advance(state, 40)
    assert state.average is not None
    assert state.renderer().field is state.average.field  # type: ignore[attr-defined]
    plain = fresh(replace(CONFIG, optimiser=replace(CONFIG.optimiser, average=0.0)))
    assert plain.renderer().field is plain.field  # type: ignore[attr-defined]
    assert not any(name.startswith("average.") for name in plain.tensors())
    with pytest.raises(ConfigError, match="average"):
        OptimiserConfig(average=1.0)


def test_training_is_bit_identical_for_one_seed_and_differs_between_seeds() -> None:
    a, b, c = fresh(), fresh(), fresh(seed=1)
    ra, rb, _ = advance(a, 12), advance(b, 12), advance(c, 12)
    assert_same(a, b)
    assert ra == rb
    assert not torch.equal(a.tensors()["field.table"], c.tensors()["field.table"])


def test_resumed_training_equals_uninterrupted_training() -> None:
    whole, first = fresh(), fresh()
    expected = advance(whole, 40)
    got = advance(first, 20)
    saved = {name: value.clone() for name, value in first.tensors().items()}
    second = fresh()
    second.restore(saved, first.scalars())
    got += advance(second, 20)
    assert_same(whole, second)
    assert got == expected


def test_numba_and_reference_give_the_same_losses() -> None:
    with dispatch.force("reference"):
        slow = fresh()
        expected = advance(slow, 6)
    fast = fresh()
    got = advance(fast, 6)
    assert [r.rays for r in got] == [r.rays for r in expected]
    assert [r.loss for r in got] == pytest.approx([r.loss for r in expected], rel=1e-3)


class _Poisoned(MemoryImages):
    """Returns NaN colours in the calls listed in `bad`."""

    def __init__(self, images: list[np.ndarray], bad: set[int]) -> None:
        super().__init__(images)
        self.bad, self.calls = bad, 0

    def gather(self, image, y, x):  # type: ignore[no-untyped-def]
        rgba, weight = super().gather(image, y, x)
        self.calls += 1
        return (rgba * math.nan if self.calls - 1 in self.bad else rgba), weight


def test_non_finite_step_leaves_the_state_unchanged() -> None:
    data = ball_scene()[1]
    images = [data.images.image(i) for i in range(len(data.rig))]
    bad = replace(data, images=_Poisoned(images, {3}))
    state = fresh()
    for _ in range(3):
        train_step(state, bad)
    before = {name: value.clone() for name, value in state.tensors().items()}
    report = train_step(state, bad)
    assert not report.finite
    assert all(torch.equal(before[name], value) for name, value in state.tensors().items())
    assert state.step == 4
    assert train_step(state, bad).finite
    assert not torch.equal(before["field.table"], state.tensors()["field.table"])


def test_restoring_another_model_raises_and_changes_nothing() -> None:
    state = fresh()
    other = fresh(replace(CONFIG, field=HashFieldConfig(GridSpec(levels=2, features=2, log2_entries=10), width=16)))
    before = {name: value.clone() for name, value in state.tensors().items()}
    with pytest.raises(CheckpointError, match=r"another model: `field.table` must be torch.float32"):
        state.restore(other.tensors(), other.scalars())
    with pytest.raises(CheckpointError, match=r"missing \['sampler.values'\]"):
        state.restore({k: v for k, v in state.tensors().items() if k != "sampler.values"}, state.scalars())
    with pytest.raises(CheckpointError, match="seed 7, not 0"):
        state.restore(state.tensors(), state.scalars() | {"seed": 7})
    assert all(torch.equal(before[name], value) for name, value in state.tensors().items())


def test_ray_count_adapts_to_the_sample_budget() -> None:
    state = fresh()
    advance(state, 60)
    marched = [r.marched for r in advance(state, 10)]
    assert all(0.6 * 2048 < m < 1.6 * 2048 for m in marched)


def test_learning_rate_matches_hand_computed_schedule() -> None:
    config = OptimiserConfig(lr=0.01, warmup=100, final=0.01)
    assert config.rate_at(0, 1000) == pytest.approx(0.0001)
    assert config.rate_at(500, 1000) == pytest.approx(0.001)
    assert config.rate_at(5000, 1000) == pytest.approx(0.0001)


def test_learning_rate_and_decay_follow_the_parameter_group() -> None:
    config = OptimiserConfig(beta1=0.0, table_beta1=0.0, decay=0.5)
    parameters = {name: torch.nn.Parameter(torch.full((2, 2), 3.0)) for name in ("table", "layer", "slow")}
    for parameter in parameters.values():
        parameter.grad = torch.full((2, 2), 4.0)
    part = TensorsPart(None)
    part.groups = lambda: [  # type: ignore[method-assign]
        Group("table", {"table": parameters["table"]}, decay=0.0, sparse=True),
        Group("network", {"layer": parameters["layer"]}),
        Group("network", {"slow": parameters["slow"]}, rate=0.5, decay=0.0),
    ]
    Optimiser(config, {"field": part}).step(0.1, torch.tensor(True))
    # The first Adam step has the length of the rate, whatever the gradient; decay subtracts 3 * 0.1 * 0.5.
    assert parameters["table"].flatten().tolist() == pytest.approx([2.9] * 4)
    assert parameters["layer"].flatten().tolist() == pytest.approx([2.75] * 4)
    assert parameters["slow"].flatten().tolist() == pytest.approx([2.95] * 4)


def test_losses_match_hand_computed_values() -> None:
    predicted = torch.tensor([[0.05, 0.0, 0.0], [0.5, 0.0, 0.0], [9.0, 9.0, 9.0]], requires_grad=True)
    target, weight = torch.zeros(3, 3), torch.tensor([1.0, 1.0, 0.0])
    huber = ColourLoss().of(predicted, target, weight)
    assert huber.item() == pytest.approx((0.5 * 0.05**2 + 0.1 * (0.5 - 0.05)) / 6)
    mse, error = squared_errors(predicted, target, weight)
    assert mse.item() == pytest.approx((0.05**2 + 0.25) / 6)
    assert error.tolist() == pytest.approx([0.05**2 / 3, 0.25 / 3, 81.0])
    (grad,) = torch.autograd.grad(huber, predicted)
    assert grad[2].abs().sum().item() == 0  # masked out
    assert ColourLoss("l2").of(predicted, target, weight).item() == pytest.approx((0.05**2 + 0.25) / 6)
    assert ColourLoss().of(predicted, target, torch.zeros(3)).item() == 0


def test_pixels_are_drawn_uniformly_from_images_of_any_size() -> None:
    sizes = torch.tensor([[2, 3], [5, 1]])
    drawn = draw_uniform(sizes, 12_000, seed=1, step=2)
    assert (drawn.y < sizes[drawn.image, 0]).all()
    assert (drawn.x < sizes[drawn.image, 1]).all()
    share = torch.bincount(drawn.image) / 12_000
    assert share.tolist() == pytest.approx([0.5, 0.5], abs=0.02)
    first = drawn.image == 0
    cells = torch.bincount(drawn.y[first] * 3 + drawn.x[first]) / int(first.sum())
    assert cells.tolist() == pytest.approx([1 / 6] * 6, abs=0.02)


def test_unknown_recipe_raises_and_suggests_a_name() -> None:
    scene, _ = ball_scene()
    assert recipes.build("ngp", scene, "cpu") == recipes.build("ngp", scene, "cpu")
    with pytest.raises(ConfigError, match="there is no recipe `ngb`") as error:
        recipes.build("ngb", scene, "cpu")
    assert "Did you mean `ngp`?" in str(error.value)


@pytest.mark.parametrize(("chunk", "batch"), [(7, 50), (100, 1), (10_000, 10**9)])
def test_rendering_does_not_depend_on_chunk_and_batch_size(
    trained: tuple[TrainState, list[StepReport]], chunk: int, batch: int
) -> None:
    state, data = trained[0], ball_scene()[1]
    rays, white = data.rig.rays_for_image(1), torch.ones(3)
    whole = VolumeRenderer(state.field, state.sampler).render(rays, white)
    cut = VolumeRenderer(state.field, state.sampler, chunk=chunk, batch=batch).render(rays, white)
    for name in ("colour", "opacity", "depth"):
        assert torch.allclose(getattr(whole, name), getattr(cut, name), atol=1e-5), name

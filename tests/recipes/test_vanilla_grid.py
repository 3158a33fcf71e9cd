"""The recipe `vanilla-grid`: the MLP behind an occupancy grid, on the plain and on the captured engine."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import raymine
from raymine import recipes
from raymine.contracts import FieldInput, Scene
from raymine.engines import choice
from raymine.fields.mlp_field import MlpFieldConfig
from raymine.kernels.activations import NGP
from raymine.samplers import OccupancyConfig
from raymine.scenes.builtin import builtin_scene
from raymine.step import TrainConfig, TrainState, create_state, train_step
from raymine.step.objective import closed_form
from raymine.step.precision import fields_for_step
from support.device import requires_gpu
from support.fused import DEVICE, GPU, data_on
from support.scenes import SCENE

NETWORK = MlpFieldConfig(depth=3, width=32, skip=2, position_frequencies=4, density=NGP.density)
GRID = OccupancyConfig(resolution=16, step=0.05, every=4, full_steps=8, cells=1 << 10)


def small(scene: Scene, device: str) -> TrainConfig:
    """The recipe with sizes that a test can afford."""
    config = recipes.build("vanilla-grid", scene, device)
    batch = replace(config.batch, samples=1 << (16 if GPU else 12), max_rays=1 << 12)
    return replace(
        config, field=NETWORK, sampler=GRID, batch=batch, optimiser=replace(config.optimiser, lr=5e-3, warmup=20)
    )


def test_recipe_takes_the_closed_form_and_half_precision_on_cuda() -> None:
    cuda, cpu = (recipes.build("vanilla-grid", SCENE, device) for device in ("cuda", "cpu"))
    assert (cuda.field, cuda.amp, cuda.mining.policy) == (MlpFieldConfig(density=NGP.density), "fp16", "hard")
    assert cpu.amp == "auto"
    state = create_state(replace(cpu, field=NETWORK), data_on(torch.device("cpu")), seed=0, device=torch.device("cpu"))
    assert closed_form(state) is not None


def test_learns_and_resumes_bit_for_bit() -> None:
    data = data_on(torch.device("cpu"))

    def fresh() -> TrainState:
        state = create_state(small(SCENE, "cpu"), data, seed=0, device=torch.device("cpu"))
        state.horizon = 200
        return state

    whole, half, rest = fresh(), fresh(), fresh()
    expected = [train_step(whole, data) for _ in range(60)]
    found = [train_step(half, data) for _ in range(30)]
    rest.restore({name: value.clone() for name, value in half.tensors().items()}, half.scalars())
    found += [train_step(rest, data) for _ in range(30)]
    assert found == expected
    first, last = (sum(r.mse for r in part) / len(part) for part in (expected[:5], expected[-5:]))
    assert -10 * math.log10(last) > -10 * math.log10(first) + 2


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_half_precision_pads_and_agrees(skip: int) -> None:
    """Encodings of 27 and 27 columns are padded to 32."""
    kind = "cuda" if GPU else "cpu"
    config = replace(small(SCENE, "cpu"), field=replace(NETWORK, skip=skip), amp="fp16" if GPU else "bf16")
    field = config.field.build(data_on(DEVICE).bounds, 0, torch.device(kind))
    query = FieldInput(
        torch.rand(64, 3, device=kind) - 0.5, torch.nn.functional.normalize(torch.randn(64, 3, device=kind))
    )
    exact = field.forward(query)
    half = fields_for_step(config, field).training.forward(query)
    assert half.colour.dtype == half.density.dtype == torch.float32
    assert float((half.density - exact.density).detach().abs().max()) < 0.05
    assert float((half.colour - exact.colour).detach().abs().max()) < 0.05
    half.density.sum().backward()
    assert all(layer.weight.grad is not None and layer.weight.grad.shape == layer.weight.shape for layer in field.trunk)


def test_captured_step_is_the_plain_step() -> None:
    pytest.importorskip("triton")
    from raymine.engines.captured import CapturedTrainer
    from raymine.engines.fused.rays import DeviceRays

    data = data_on(DEVICE)

    def fresh() -> TrainState:
        config = replace(small(SCENE, "cpu"), engine="captured", batch=replace(small(SCENE, "cpu").batch, samples=192))
        mining = replace(config.mining, hard=replace(config.mining.hard, draw="poisson"))
        state = create_state(replace(config, mining=mining), data, seed=3, device=DEVICE)
        state.rays, state.horizon = 10, 100
        return state

    captured, plain = fresh(), fresh()
    trainer, draw = CapturedTrainer(captured, data), DeviceRays(plain, data).batch
    for _ in range(3):
        (got,), expected = trainer.advance(1), train_step(plain, data, draw)
        assert (got.rays, got.marched) == (expected.rays, expected.marched)
        assert got.loss == pytest.approx(expected.loss, rel=1e-3)


def test_captured_step_fades_levels_in_place() -> None:
    """A CUDA graph reads the weights of levels where they were when it was captured."""
    pytest.importorskip("triton")
    from raymine.engines.captured import CapturedTrainer
    from raymine.step.schedule import FadeConfig

    data = data_on(DEVICE)
    config = replace(small(SCENE, "cpu"), engine="captured", fade=FadeConfig(0.25, 0.5))
    config = replace(config, batch=replace(config.batch, samples=192), mining=replace(config.mining, policy="prune"))
    state = create_state(config, data, seed=3, device=DEVICE)
    state.rays, state.horizon = 10, 4
    trainer, places = CapturedTrainer(state, data), set()
    weights = []
    for _ in range(4):
        trainer.advance(1)
        places.add(state.module._fading.data_ptr())
        weights.append(state.module._fading.tolist())
    assert len(places) == 1
    assert weights[0] == pytest.approx([1.0, 0.0, 0.0, 0.0])
    assert weights[1] == pytest.approx([1.0, 1.0, 0.5, 0.0])
    assert weights[2] == weights[3] == [1.0] * 4


@requires_gpu
def test_trains_in_a_graph_on_cuda(tmp_path: Path) -> None:
    scene = builtin_scene(tmp_path / "builtin", size=32, train_views=8, test_views=2)
    state = create_state(small(SCENE, "cuda"), data_on(DEVICE), seed=0, device=DEVICE)
    engine = choice.engine_for(state, data_on(DEVICE))
    engine.warm_up()
    assert engine.name == "captured"
    assert engine.trainer._capturable  # type: ignore[attr-defined]
    run = raymine.train(scene, small, steps=300, out=tmp_path / "run", device="cuda", progress=False)
    assert run.evaluate().psnr > 18

"""The recipe `vanilla`: a second model, trained by the trainer that knows nothing of it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import raymine
from raymine import recipes
from raymine.contracts import Draws, FieldInput, Rays, Scene
from raymine.errors import ConfigError
from raymine.fields.mlp_field import MlpFieldConfig, positional_encoding
from raymine.samplers.hierarchical import HierarchicalConfig
from raymine.scenes.builtin import builtin_scene
from raymine.step import TrainConfig, TrainState, create_state, train_step
from support.device import requires_gpu
from support.scenes import ball_scene

CPU = torch.device("cpu")
SCENE, DATA = ball_scene()
NETWORK = MlpFieldConfig(depth=3, width=32, skip=2, position_frequencies=4)


def small(scene: Scene, device: str) -> TrainConfig:
    """The recipe with networks that a test can afford."""
    config = recipes.build("vanilla", scene, device)
    return replace(
        config,
        field=NETWORK,
        sampler=HierarchicalConfig(NETWORK, coarse=16, fine=16),
        batch=replace(config.batch, samples=1 << 12),
        optimiser=replace(config.optimiser, lr=5e-3, warmup=20),
    )


def fresh(policy: str = "hard") -> TrainState:
    config = small(SCENE, "cpu")
    mining = replace(config.mining, policy=policy)  # type: ignore[arg-type]
    state = create_state(replace(config, mining=mining), DATA, seed=0, device=CPU)
    state.horizon = 200
    return state


def psnr(reports: list[raymine.contracts.StepReport]) -> float:
    return -10 * math.log10(sum(report.mse for report in reports) / len(reports))


@pytest.mark.parametrize("policy", ["none", "prune", "hard"])
def test_vanilla_learns_and_resumes_bit_for_bit(policy: str) -> None:
    whole, half, rest = fresh(policy), fresh(policy), fresh(policy)
    expected = [train_step(whole, DATA) for _ in range(60)]
    found = [train_step(half, DATA) for _ in range(30)]
    rest.restore({name: value.clone() for name, value in half.tensors().items()}, half.scalars())
    found += [train_step(rest, DATA) for _ in range(30)]
    assert found == expected
    for name, value in whole.tensors().items():
        assert torch.equal(value, rest.tensors()[name]), name
    assert psnr(expected[-10:]) > psnr(expected[:5]) + 3


def test_coarse_network_is_a_part_with_its_own_moments() -> None:
    state = fresh()
    before = {name: value.clone() for name, value in state.tensors().items()}
    train_step(state, DATA)
    names = [name for name in before if name.startswith("sampler.network.") and name.endswith("weight")]
    assert names
    assert all(f"adam.second.{name}" in before for name in names)
    changed = [name for name in names if not torch.equal(before[name], state.tensors()[name])]
    assert changed == names


@pytest.mark.parametrize("unbounded", [False, True])
def test_fine_samples_gather_where_the_coarse_network_is_dense(unbounded: bool) -> None:
    class Shell(torch.nn.Module):
        """Opaque between 0.4 and 0.5 from the origin."""

        def density(self, positions: torch.Tensor, time: torch.Tensor | None = None) -> torch.Tensor:
            radius = positions.norm(dim=-1)
            return torch.where((radius - 0.45).abs() < 0.05, 5.0, -20.0)

    bounds = replace(DATA.bounds, levels=3 if unbounded else 1, near=0.5, far=20.0)
    sampler = HierarchicalConfig(NETWORK, coarse=64, fine=64).build(bounds, 0, CPU)
    sampler.network = Shell()
    rays = Rays(torch.tensor([[0.0, 0.0, -3.0], [9.0, 9.0, -30.0]]), torch.tensor([[0.0, 0.0, 1.0]] * 2), *(
        torch.full((2,), edge) for edge in (0.5, 20.0)
    ))  # fmt: skip
    samples = sampler.sample(rays, sampler.network).samples
    hit = samples.ray_id == 0
    assert samples.count.tolist() == ([128, 128] if unbounded else [128, 0])
    start, end = samples.t_start[hit], samples.t_end[hit]
    assert torch.equal(start[1:], end[:-1]), "intervals follow one another"
    middle = (start + end) / 2
    assert ((middle > 2.4) & (middle < 2.7)).sum() > 40, "the front of the shell is at a distance of 2.5"


def test_samples_are_shifted_in_training_and_only_there() -> None:
    state = fresh()
    rays = DATA.rig.rays_for_image(0)
    still = [state.sampler.sample(rays, state.field).samples.t_start for _ in range(2)]
    assert torch.equal(*still)
    drawn = [state.sampler.sample(rays, state.field, Draws(0, step, CPU)).samples.t_start for step in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_positional_encoding_by_hand() -> None:
    found = positional_encoding(torch.tensor([[0.5, -1.0]]), 2)
    expected = [0.5, -1.0, *(math.sin(v) for v in (0.5, -1, 1, -2)), *(math.cos(v) for v in (0.5, -1, 1, -2))]
    assert found[0].tolist() == pytest.approx(expected)


def test_density_pass_agrees_with_forward() -> None:
    field = NETWORK.build(DATA.bounds, 3, CPU)
    query = FieldInput(torch.rand(20, 3), torch.nn.functional.normalize(torch.randn(20, 3), dim=-1))
    raw, features = field.density_and_features(query.positions)
    assert torch.equal(raw, field.density(query.positions))
    with torch.no_grad():
        known, anew = field(replace(query, features=features)), field(query)
    assert torch.allclose(known.density, anew.density)
    assert torch.allclose(known.colour, anew.colour)


def test_config_refuses_nonsense() -> None:
    with pytest.raises(ConfigError, match="`skip` must be a layer from 1 to 3"):
        MlpFieldConfig(depth=3, skip=4)
    with pytest.raises(ConfigError, match=r"2 \.\. 4096 coarse and 1 \.\. 4096 fine samples, got 1"):
        HierarchicalConfig(NETWORK, coarse=1)


def test_vanilla_trains_the_builtin_scene(tmp_path: Path) -> None:
    scene = builtin_scene(tmp_path / "builtin", size=32, train_views=8, test_views=2)
    run = raymine.train(scene, small, steps=150, out=tmp_path / "run", device="cpu", progress=False)
    assert run.evaluate().psnr > 16
    frame = run.scene.frames[0]
    assert raymine.load(tmp_path / "run").render(frame.camera, frame.pose).colour.shape == (32, 32, 3)


@requires_gpu
def test_vanilla_trains_on_cuda(tmp_path: Path) -> None:
    scene = builtin_scene(tmp_path / "builtin", size=32, train_views=8, test_views=2)
    run = raymine.train(scene, small, steps=150, out=tmp_path / "run", device="cuda", progress=False)
    assert run.evaluate().psnr > 16

"""The proposal sampler: where samples lie, determinism, gated gradients, annealing, rays that miss, and configs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from raymine.config.codec import from_json, to_json
from raymine.contracts import Bounds, Draws, Rays, SamplerConfig
from raymine.errors import ConfigError
from raymine.fields.density_grid import DensityGridConfig
from raymine.fields.mlp_field import MlpFieldConfig
from raymine.kernels.hash_grid.op import GridSpec
from raymine.samplers.proposal import ProposalConfig, ProposalSampler

CPU = torch.device("cpu")
NETWORK = DensityGridConfig(GridSpec(levels=3, features=2, log2_entries=10, base=4, finest=32), width=8)
SMALL = ProposalConfig((NETWORK, NETWORK), samples=(16, 12), final=8, anneal_steps=10, every=3, every_step_until=5)
BOUNDED = Bounds((-1.0,) * 3, (1.0,) * 3, near=0.05, far=10.0)
UNBOUNDED = replace(BOUNDED, levels=3, near=0.2)


class Shell(torch.nn.Module):
    """Opaque between 0.4 and 0.5 from the origin."""

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        return torch.where((positions.norm(dim=-1) - 0.45).abs() < 0.05, 5.0, -20.0)


def rays_to_origin(n: int, bounds: Bounds = BOUNDED) -> Rays:
    directions = torch.nn.functional.normalize(torch.randn(n, 3, generator=torch.Generator().manual_seed(0)), dim=-1)
    near, far = torch.full((n,), bounds.near), torch.full((n,), bounds.far)
    return Rays(directions * -3.0, directions, near, far)


def built(config: ProposalConfig = SMALL, bounds: Bounds = BOUNDED) -> ProposalSampler:
    return config.build(bounds, 0, CPU)


@pytest.mark.parametrize("n", [0, 1, 63])
@pytest.mark.parametrize("bounds", [BOUNDED, UNBOUNDED], ids=["bounded", "unbounded"])
def test_samples_are_contiguous_within_the_ray_and_packed(n: int, bounds: Bounds) -> None:
    sampler, rays = built(bounds=bounds), rays_to_origin(n, bounds)
    for draws in (None, Draws(0, 3, CPU)):
        found = sampler.sample(rays, sampler, draws)  # type: ignore[arg-type]
        rounds = [found.samples, *(each.samples for each in found.earlier)]
        assert [len(each) for each in rounds] == [8 * n, *([16 * n, 12 * n] if draws else [])]
        for each in rounds:
            assert each.ray_id.tolist() == torch.arange(n).repeat_interleave(len(each) // max(n, 1)).tolist()
            start, end = (part.view(n, -1) for part in (each.t_start, each.t_end)) if n else (each.t_start,) * 2
            assert bool((start <= end).all())
            if n:
                assert torch.equal(start[:, 1:], end[:, :-1])
                low, high = (bounds.near, 1e3) if bounds.unbounded else (3 - math.sqrt(3), 3 + math.sqrt(3))
                assert float(start.min()) >= low * (1 - 1e-5)
                assert float(end.max()) <= high * (1 + 1e-5)
        for each in found.earlier:
            assert each.weights.shape == each.samples.t_start.shape
            assert bool((each.weights >= 0).all())


@pytest.mark.parametrize("bounds", [BOUNDED, UNBOUNDED], ids=["bounded", "unbounded"])
def test_final_samples_gather_where_the_networks_are_dense(bounds: Bounds) -> None:
    sampler = built(replace(SMALL, samples=(128, 64), final=32), bounds)
    sampler.networks = torch.nn.ModuleList([Shell(), Shell()])
    # With a nearer `near`, 128 intervals in disparity would be longer than the shell is thick.
    rays = rays_to_origin(5, replace(bounds, near=1.0))
    samples = sampler.sample(rays, sampler).samples  # type: ignore[arg-type]
    middle = (samples.t_start + samples.t_end) / 2
    assert float(((middle > 2.45) & (middle < 2.65)).float().mean()) > 0.8, "the front of the shell is at 2.5"


def test_unbounded_rays_reach_far_and_are_linear_in_disparity() -> None:
    sampler = built(replace(SMALL, samples=(64, 12)), UNBOUNDED)
    found = sampler.sample(rays_to_origin(3, UNBOUNDED), sampler, Draws(0, 0, CPU)).earlier[0]  # type: ignore[arg-type]
    edges = found.samples.t_start.view(3, 64)
    disparity = 1 / edges[:, 1:-1]
    assert torch.allclose(disparity.diff(dim=1), torch.full((3, 61), -(1 / 0.2 - 1e-3) / 64), rtol=1e-3)
    assert found.scale is not None
    s = found.scale.normalised(found.samples.t_start, found.samples.ray_id).view(3, 64)
    assert torch.allclose(s[:, 1:].diff(dim=1), torch.full((3, 62), 1 / 64), atol=1e-5)
    assert built(SMALL, UNBOUNDED).spacing == "lindisp"
    assert built(SMALL, BOUNDED).spacing == "uniform"
    assert built(replace(SMALL, spacing="lindisp"), BOUNDED).spacing == "lindisp"


def test_rays_that_miss_have_no_samples() -> None:
    sampler = built()
    rays = rays_to_origin(4)
    origins = rays.origins.clone()
    origins[[0, 2]] += 50.0
    rays = replace(rays, origins=origins)
    for draws in (None, Draws(0, 1, CPU)):
        found = sampler.sample(rays, sampler, draws)  # type: ignore[arg-type]
        assert found.samples.count.tolist() == [0, 8, 0, 8]
        assert found.samples.first.tolist() == [0, 0, 8, 8]
        assert all(each.samples.count.tolist()[::2] == [0, 0] for each in found.earlier)
    nothing = replace(rays, origins=rays.origins + 100)
    found = sampler.sample(nothing, sampler, Draws(0, 1, CPU))  # type: ignore[arg-type]
    assert len(found.samples) == 0
    assert found.samples.count.tolist() == [0] * 4


def test_rays_see_their_own_numbers_whatever_other_rays_hit() -> None:
    """Offsets belong to rays, not to rays that hit."""
    sampler, rays, draws = built(), rays_to_origin(4), Draws(0, 1, CPU)
    whole = sampler.sample(rays, sampler, draws).samples  # type: ignore[arg-type]
    origins = rays.origins.clone()
    origins[1] += 50.0
    part = sampler.sample(replace(rays, origins=origins), sampler, draws).samples  # type: ignore[arg-type]
    assert torch.allclose(part.t_start[8:], whole.t_start[16:])


def test_samples_are_shifted_in_training_and_only_there() -> None:
    sampler, rays = built(), rays_to_origin(6)
    still = [sampler.sample(rays, sampler).samples.t_start for _ in range(2)]  # type: ignore[arg-type]
    assert torch.equal(*still)
    drawn = [sampler.sample(rays, sampler, Draws(0, step, CPU)).samples.t_start for step in (20, 20, 21)]  # type: ignore[arg-type]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_rounds_have_a_graph_only_at_steps_that_train_the_networks() -> None:
    sampler, rays = built(), rays_to_origin(6)
    assert [step for step in range(15) if SMALL.trained_at(step)] == [0, 1, 2, 3, 4, 5, 8, 11, 14]
    for step in (0, 4, 5, 6, 7, 8):
        found = sampler.sample(rays, sampler, Draws(0, step, CPU))  # type: ignore[arg-type]
        assert len(found.earlier) == (2 if SMALL.trained_at(step) else 0)
        assert all(each.weights.requires_grad for each in found.earlier)
        assert not found.samples.t_start.requires_grad
    closed = replace(SMALL, every_step_until=0, every=100)
    assert not built(closed).sample(rays, sampler, Draws(0, 1, CPU)).earlier  # type: ignore[arg-type]
    assert not sampler.sample(rays, sampler).earlier  # type: ignore[arg-type]


def test_every_network_parameter_gets_a_finite_gradient() -> None:
    sampler = built(bounds=UNBOUNDED)
    found = sampler.sample(rays_to_origin(6, UNBOUNDED), sampler, Draws(0, 0, CPU))  # type: ignore[arg-type]
    sum(each.weights.square().sum() for each in found.earlier).backward()
    for name, value in sampler.named_parameters():
        assert value.grad is not None, name
        assert bool(torch.isfinite(value.grad).all()), name
        assert bool(value.grad.any()), name


def test_samples_do_not_depend_on_whether_networks_are_trained() -> None:
    """The pass without a graph asks the networks in pieces; the samples are the same."""
    trained, closed = built(), built(replace(SMALL, every_step_until=0, every=10_000))
    rays = rays_to_origin(6)
    found = [each.sample(rays, each, Draws(0, 3, CPU)).samples.t_start for each in (trained, closed)]  # type: ignore[arg-type]
    assert torch.equal(*found)


def test_annealed_samples_are_even_at_first() -> None:
    sampler = built(replace(SMALL, samples=(64, 64), final=32))
    sampler.networks = torch.nn.ModuleList([Shell(), Shell()])
    rays = rays_to_origin(6)

    def gathered(step: int) -> float:
        samples = sampler.sample(rays, sampler, Draws(0, step, CPU)).samples  # type: ignore[arg-type]
        return float((((samples.t_start + samples.t_end) / 2 - 2.55).abs() < 0.1).float().mean())

    assert SMALL.exponent_at(0) == 0
    assert SMALL.exponent_at(5) == pytest.approx(5 / 5.5)
    assert SMALL.exponent_at(10) == SMALL.exponent_at(1000) == 1
    assert replace(SMALL, anneal_steps=0).exponent_at(0) == 1
    assert gathered(0) < 0.15
    assert gathered(10) > 0.7


def test_networks_are_groups_of_the_sampler() -> None:
    sampler = built(replace(SMALL, networks=(NETWORK, MlpFieldConfig(depth=2, width=16, skip=0))))
    groups = sampler.groups()
    assert [(group.role, group.sparse) for group in groups] == [
        ("proposal table", True),
        ("proposal network", False),
        ("proposal network", False),
    ]
    names = {name: value for group in groups for name, value in group.parameters.items()}
    assert names == dict(sampler.named_parameters())
    first, second = built().networks
    assert not torch.equal(first.table, second.table), "each network has its own initial values"


def test_any_field_may_be_a_proposal_network() -> None:
    sampler = built(replace(SMALL, networks=(NETWORK, MlpFieldConfig(depth=2, width=16, skip=0))))
    found = sampler.sample(rays_to_origin(3), sampler, Draws(0, 0, CPU))  # type: ignore[arg-type]
    assert all(bool(torch.isfinite(each.weights).all()) for each in found.earlier)


def test_memory_counts_what_the_networks_evaluate_for_each_final_sample() -> None:
    one = NETWORK.memory(BOUNDED)
    found = SMALL.memory(BOUNDED)
    assert found.fixed == 2 * one.fixed
    assert found.per_sample >= one.per_sample * (16 + 12) / 8


def test_config_survives_json() -> None:
    config: SamplerConfig = SMALL
    assert from_json(ProposalConfig, to_json(config)) == SMALL


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"samples": (8,)},
            "`networks` and `samples` must have one entry for each round, and at least one; got 2 and 1",
        ),
        ({"networks": (), "samples": ()}, "at least one; got 0 and 0"),
        ({"samples": (8, 0)}, r"`samples` and `final` must be in 1 \.\. 4096 for each ray, got \[8, 0\] and 8"),
        ({"final": 5000}, r"must be in 1 \.\. 4096 for each ray, got \[16, 12\] and 5000"),
        ({"spacing": "log"}, "`spacing` must be one of auto, uniform, lindisp; got 'log'"),
        ({"far": 0.0}, "`far` must be above 0, got 0"),
        ({"anneal_slope": 0.0}, "annealing needs anneal_steps >= 0 and anneal_slope > 0; got 10 and 0"),
        ({"every": 0}, "training of proposals needs every >= 1 and every_step_until >= 0; got 0 and 5"),
    ],
)
def test_invalid_configs_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(SMALL, **changes)  # type: ignore[arg-type]

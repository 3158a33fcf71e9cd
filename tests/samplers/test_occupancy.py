"""The occupancy sampler: culling of empty cells, decay, the schedule of updates, and determinism."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from raymine.contracts import Bounds, Rays
from raymine.errors import ConfigError
from raymine.samplers import OccupancyConfig, OccupancySampler

CPU = torch.device("cpu")
CONFIG = OccupancyConfig(resolution=16, step=0.05, full_steps=32, cells=512)
UNIT = Bounds(low=(-1.0, -1.0, -1.0), high=(1.0, 1.0, 1.0))


def ball(points: torch.Tensor) -> torch.Tensor:
    """Density 50 inside a ball of radius 0.5."""
    return 50.0 * (points.norm(dim=-1) < 0.5)


def rays_along_x(n: int = 50) -> Rays:
    origins = torch.cat((torch.full((n, 1), -3.0), torch.rand(n, 2) * 1.6 - 0.8), -1)
    return Rays(
        origins, torch.tensor([1.0, 0.0, 0.0]).expand(n, 3).contiguous(), torch.zeros(n), torch.full((n,), 99.0)
    )


def test_every_cell_is_occupied_before_the_first_sweep() -> None:
    sampler = OccupancySampler(CONFIG, UNIT, CPU)
    assert sampler.sample(rays_along_x()).samples.count.tolist() == [40] * 50


@pytest.mark.parametrize("levels", [1, 3])
def test_one_sweep_culls_empty_cells(levels: int) -> None:
    sampler = OccupancySampler(CONFIG, Bounds(UNIT.low, UNIT.high, levels), CPU)
    sampler.update(ball, seed=0, step=16)
    rays = rays_along_x()
    samples = sampler.sample(rays).samples
    points = rays.origins[samples.ray_id] + ((samples.t_start + samples.t_end) / 2)[:, None] * rays.directions[0]
    assert len(samples) > 0
    assert float(points.norm(dim=-1).max()) < 0.5 + 2 * 3**0.5 / 8  # within one cell's diagonal of the ball
    inside = ((rays.origins[:, 1:].norm(dim=-1)) < 0.4).nonzero()[:, 0]
    assert (samples.count[inside] > 0).all()


def test_cells_of_moved_content_become_empty() -> None:
    """The ball moves to a corner; after many updates, rays through its old place get no samples."""
    sampler = OccupancySampler(CONFIG, UNIT, CPU)
    sampler.update(ball, seed=0, step=16)
    centre = Rays(torch.tensor([[-3.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 0.0]]), torch.zeros(1), torch.ones(1) * 9)
    assert sampler.sample(centre).samples.count.item() > 0
    for _ in range(100):  # 0.95^100 of the old opacity is below the threshold
        sampler.update(lambda points: ball(points - 0.6), seed=0, step=16)
    assert sampler.sample(centre).samples.count.item() == 0


def test_decay_slows_down_after_settling() -> None:
    config = replace(CONFIG, decay=0.9, settle=100)
    assert [config.decay_at(step) for step in (0, 100, 200, 1000)] == pytest.approx([0.9, 0.9, 0.95, 0.99])
    assert replace(config, settle=0).decay_at(10**6) == 0.9
    sampler = OccupancySampler(config, UNIT, CPU)
    sampler.update(ball, seed=0, step=16)
    before = sampler.values.clone()
    sampler.update(lambda points: points[:, 0] * 0, seed=0, step=16)
    assert torch.allclose(sampler.values, before * 0.9)
    sampler.swept = False  # the next update visits every cell
    sampler.update(ball, seed=0, step=16)
    before = sampler.values.clone()
    for _ in range(200):
        sampler.update(lambda points: points[:, 0] * 0, seed=0, step=10**6)
    # A visit decays a value by a factor of 1 - 1e-5.
    assert torch.allclose(sampler.values, before, rtol=3e-3)


def test_field_of_near_zero_density_still_gets_samples() -> None:
    """The threshold never exceeds the mean value, so the grid cannot collapse to nothing and starve training."""
    sampler = OccupancySampler(CONFIG, UNIT, CPU)
    sampler.update(lambda points: torch.full((len(points),), 1e-5) * torch.rand(len(points)), seed=0, step=16)
    assert len(sampler.sample(rays_along_x()).samples) > 0


def test_new_content_is_found_by_later_updates() -> None:
    sampler = OccupancySampler(CONFIG, UNIT, CPU)
    sampler.update(lambda points: torch.zeros(len(points)), seed=0, step=16)
    for i in range(60):
        sampler.update(ball, seed=0, step=64 + 16 * i)
    centre = Rays(torch.tensor([[-3.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 0.0]]), torch.zeros(1), torch.ones(1) * 9)
    assert sampler.sample(centre).samples.count.item() >= 15


def test_updates_are_a_function_of_seed_and_step() -> None:
    a, b = (OccupancySampler(CONFIG, UNIT, CPU) for _ in range(2))
    for sampler in (a, b):
        for step in (16, 32, 48):
            sampler.update(ball, seed=4, step=step)
    assert torch.equal(a.values, b.values)
    b.swept = True
    b.values.copy_(a.values)
    b.changed()
    assert torch.equal(a.grid.bits, b.grid.bits)


def test_updates_are_due_every_16_steps() -> None:
    sampler = OccupancySampler(CONFIG, UNIT, CPU)
    assert [s for s in range(50) if sampler.due(s)] == [16, 32, 48]


def test_no_cell_is_left_out_before_start() -> None:
    config = replace(CONFIG, start=40, full_steps=32)
    sampler = OccupancySampler(config, UNIT, CPU)
    assert [s for s in range(90) if sampler.due(s)] == [48, 64, 80]
    assert config.first_update == 48
    assert CONFIG.first_update == 16
    assert [config.visits_all(step) for step in (48, 64, 80)] == [True, True, False]
    assert sampler.sample(rays_along_x()).samples.count.tolist() == [40] * 50
    with pytest.raises(ConfigError, match="start >= 0"):
        OccupancyConfig(start=-1)


def test_resolution_must_be_a_multiple_of_eight() -> None:
    with pytest.raises(ConfigError, match=r"multiple of 8 in 8 \.\. 512, got 100"):
        OccupancyConfig(resolution=100)

"""Updates of the occupancy grid on the device against the sampler, which is their reference."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from raymine.engines.fused.trainer import FusedTrainer
from raymine.kernels.activations import NGP
from raymine.samplers import OccupancySampler
from support.fused import CONFIG, DEVICE, GPU, SHAPES, halved, trainer_for

RES = CONFIG.sampler.resolution


def settled(trainer: FusedTrainer, share: float) -> OccupancySampler:
    """Give a random share of the cells a value; returns a copy of the sampler for the reference update."""
    halved(trainer.state)
    trainer.model.refresh(trainer.state.field)
    sampler = trainer.state.sampler
    sampler.values.copy_((torch.rand_like(sampler.values) < share) * torch.rand_like(sampler.values))
    sampler.swept = True
    trainer.grid.refresh()
    own = copy.deepcopy(sampler)
    own.changed()
    return own


@pytest.mark.parametrize("unbounded", [False, True])
@pytest.mark.parametrize(
    ("step", "share"), [(4, 0.3), (12, 0.3), (12, 0.02), (12, 0.0)], ids=["all", "some", "few occupied", "none"]
)
def test_grid_update_matches_the_sampler(step: int, share: float, unbounded: bool) -> None:
    check_update(trainer_for(unbounded=unbounded), step, share)


@pytest.mark.parametrize("name", SHAPES)
def test_grid_update_matches_the_sampler_for_every_network_shape(name: str) -> None:
    for step in (4, 12) if GPU else (12,):  # all cells take long in the interpreter
        check_update(trainer_for(replace(CONFIG, field=SHAPES[name])), step, 0.3)


def check_update(trainer: FusedTrainer, step: int, share: float) -> None:
    state = trainer.state
    expected = settled(trainer, share)
    before = expected.values.clone()
    trainer.step.fill_(step)
    for part in (trainer.grid._found, trainer.grid._mean):
        part.fill_(float("nan"))
    trainer.grid._listed.fill_(1 << 30)
    trainer._update_grid(step)
    with torch.no_grad():
        expected.update(lambda points: NGP.density(state.field.density(points)), state.seed, step)

    values = state.sampler.values
    # Cells that are not visited stay bit-identical; the others agree within float16 precision.
    same = expected.values == before
    assert torch.equal(values[same], before[same])
    assert bool(same.any()) == (step > 8)
    assert torch.allclose(values, expected.values, rtol=0.03, atol=2e-3)
    limit = expected.values.mean(-1, keepdim=True).clamp_max(CONFIG.sampler.threshold)
    clear = (expected.values - limit).abs() > 0.05 * limit + 2e-3
    assert torch.equal(trainer.grid.bytes[clear].bool(), expected.grid.cells[clear].bool())


@pytest.mark.parametrize("occupied", [0, 1, 5, RES**3])
def test_box_is_tight_around_occupied_cells(occupied: int) -> None:
    trainer = trainer_for()
    sampler, grid = trainer.state.sampler, trainer.grid
    low, high = (np.array(side, np.float32) for side in (sampler.bounds.low, sampler.bounds.high))
    for _ in range(2):  # the second round starts from the state of the first
        values = torch.zeros(RES**3, device=DEVICE)
        chosen = torch.randperm(RES**3)[:occupied]
        values[chosen.to(DEVICE)] = 0.5 + torch.rand(occupied, device=DEVICE)
        sampler.values[0], sampler.swept = values, True
        grid.refresh()
        found = grid.box[6:].cpu().numpy()
        if occupied == 0:
            assert (found[:3] > found[3:]).all()
            continue
        places = np.stack(np.unravel_index(chosen.numpy(), (RES,) * 3))
        side = (high - low) / RES
        assert np.allclose(found[:3], low + side * places.min(1), atol=1e-6)
        assert np.allclose(found[3:], low + side * (places.max(1) + 1), atol=1e-6)
        assert int(grid.bytes.sum()) == occupied


def test_box_is_whole_volume_before_first_sweep_and_with_several_levels() -> None:
    trainer = trainer_for(unbounded=True)
    bounds = trainer.state.sampler.bounds
    low, high = (torch.tensor(side, device=DEVICE) for side in (bounds.low, bounds.high))
    whole = torch.cat((low + high - 4 * (high - low), low + high + 4 * (high - low))) / 2
    assert torch.allclose(trainer.grid.box[6:], whole)
    assert bool(trainer.grid.bytes.all())
    settled(trainer, 0.1)
    assert torch.allclose(trainer.grid.box[6:], whole)

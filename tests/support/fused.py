"""Trainers for the tests of the fused step: on the GPU, or without one in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from raymine.contracts import Bounds
from raymine.fields import HashFieldConfig
from raymine.kernels.hash_grid.op import GridSpec
from raymine.kernels.packed import Samples
from raymine.mining import HardConfig, MiningConfig
from raymine.rays import CameraRig
from raymine.samplers import OccupancyConfig
from raymine.step import TrainConfig, TrainData, TrainState, create_state
from raymine.step.config import BatchConfig
from raymine.step.optimiser import OptimiserConfig
from support.scenes import ball_scene

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GPU = DEVICE.type == "cuda"
triton = pytest.importorskip("triton")

from raymine.engines.fused.trainer import FusedTrainer  # noqa: E402

POISSON = MiningConfig(policy="hard", hard=HardConfig(draw="poisson"))
SAMPLES = 1 << 14 if GPU else 192
CONFIG = TrainConfig(
    field=HashFieldConfig(GridSpec(levels=4, features=4, log2_entries=9, base=4, finest=32), width=16),
    sampler=OccupancyConfig(resolution=16, step=0.06, every=4, full_steps=8, cells=1 << 8),
    batch=BatchConfig(samples=SAMPLES, max_rays=SAMPLES),
    optimiser=OptimiserConfig(warmup=10, final=0.3, average=0.1),
    mining=POISSON,
)
SHAPES = {
    "ngp": HashFieldConfig(GridSpec(8, 4, 9, 4, 32), width=64),
    "ngp-large": HashFieldConfig(GridSpec(12, 4, 9, 4, 32), width=128),
    "16 x 2, three layers": HashFieldConfig(GridSpec(16, 2, 9, 4, 32), width=32, colour_layers=3),
    "5 x 1, one layer": HashFieldConfig(GridSpec(5, 1, 9, 4, 32), width=24, geometry=9, colour_layers=1),
    "3 x 8": HashFieldConfig(GridSpec(3, 8, 9, 4, 32), width=64, geometry=16),
}


def data_on(device: torch.device, unbounded: bool = False) -> TrainData:
    scene, data = ball_scene()
    bounds = Bounds(data.bounds.low, data.bounds.high, levels=3) if unbounded else data.bounds
    return replace(data, rig=CameraRig(replace(scene, bounds=bounds), range(len(data.rig)), device), bounds=bounds)


def trainer_for(config: TrainConfig = CONFIG, unbounded: bool = False, rays: int = 0) -> FusedTrainer:
    data = data_on(DEVICE, unbounded)
    state = create_state(config, data, seed=3, device=DEVICE)
    state.rays = rays or (512 if GPU else 12)
    with torch.no_grad():
        # The parameters of a fresh field are close to 0, so give it random ones.
        state.field.table.copy_(torch.randn_like(state.field.table))
    return FusedTrainer(state, data)


def halved(state: TrainState) -> TrainState:
    """Round the parameters to float16, as the kernels read them."""
    with torch.no_grad():
        for parameter in state.field.parameters():
            parameter.copy_(parameter.half().float())
    return state


def close(got: Tensor, expected: Tensor, bound: float) -> None:
    """Assert that the relative error by norm is below `bound`; NaN fails."""
    assert got.shape == expected.shape
    distance = (got.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-12)
    assert float(distance) < bound, float(distance)


def poison(trainer: FusedTrainer) -> None:
    """Fill the buffers with NaN or a large integer, so that elements that are never written show up."""
    b = trainer.buffers
    for part in (b.rays, b.wanted, b.harmonics, b.t_start, b.t_end, b.raw, b.gradient, b.size, b.weight, b.jitter):
        part.fill_(float("nan"))
    for part in (b.ray_id, b.index, b.first, b.running, b.seen, b.hitting, b.block_count, b.n_chosen):
        part.fill_(1 << 30)
    trainer.parts.fill_(float("nan"))
    trainer.sums.fill_(float("nan"))


def samples_of(trainer: FusedTrainer) -> Samples:
    """The samples in the trainer's buffers."""
    b, n, rays = trainer.buffers, int(trainer.buffers.n_samples), int(trainer.n_rays)
    layout = b.ray_id[:n].long(), b.first[:rays].long(), b.count[:rays].long()
    return Samples(b.t_start[:n], b.t_end[:n], *layout)

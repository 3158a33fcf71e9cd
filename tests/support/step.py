"""A configuration so small that a training step takes milliseconds."""

from __future__ import annotations

from raymine.fields import HashFieldConfig
from raymine.kernels.hash_grid.op import GridSpec
from raymine.samplers import OccupancyConfig
from raymine.step import TrainConfig
from raymine.step.config import BatchConfig
from raymine.step.optimiser import OptimiserConfig

CONFIG = TrainConfig(
    field=HashFieldConfig(GridSpec(levels=4, features=2, log2_entries=10, base=4, finest=32), width=16),
    sampler=OccupancyConfig(resolution=16, step=0.04, every=4, full_steps=8, cells=1 << 10),
    batch=BatchConfig(samples=1 << 11, max_rays=512),
    optimiser=OptimiserConfig(warmup=10, final=0.3, average=0.1),
)

"""`ngp`: hash grid, occupancy marching, Adam. Sizes suit the device: what a GPU digests in a step would stall a CPU."""

from __future__ import annotations

from raymine.contracts import Scene
from raymine.fields import HashFieldConfig
from raymine.kernels.hash_grid.op import GridSpec
from raymine.samplers import OccupancyConfig
from raymine.step import TrainConfig
from raymine.step.config import BatchConfig
from raymine.step.optimiser import OptimiserConfig


def ngp(scene: Scene, device: str) -> TrainConfig:
    """The default recipe, for bounded and unbounded static scenes."""
    return _cpu(scene) if device == "cpu" else _cuda(scene)


def _cpu(scene: Scene) -> TrainConfig:
    """Few wide levels and small steps: 8 x 4 features beat 16 x 2 at the same cost on a CPU, and small batches win."""
    unbounded = scene.bounds.unbounded
    return TrainConfig(
        field=HashFieldConfig(grid=GridSpec(levels=8, features=4, log2_entries=17 if unbounded else 15, finest=512)),
        occupancy=OccupancyConfig(
            resolution=64, step=_step(scene, 300), cone=0.004 if unbounded else 0.0, cells=1 << 16, full_steps=64
        ),
        batch=BatchConfig(samples=1 << 14, max_rays=1 << 13),
        optimiser=OptimiserConfig(final=0.1),
    )


def _cuda(scene: Scene) -> TrainConfig:
    unbounded = scene.bounds.unbounded
    return TrainConfig(
        field=HashFieldConfig(grid=GridSpec(finest=4096 if unbounded else 2048)),
        occupancy=OccupancyConfig(step=_step(scene, 600), cone=0.004 if unbounded else 0.0),
        batch=BatchConfig(samples=1 << 18),
    )


def _step(scene: Scene, steps: int) -> float:
    """A step that cuts the side of the inner box into `steps`."""
    return max(b - a for a, b in zip(scene.bounds.low, scene.bounds.high, strict=True)) / steps

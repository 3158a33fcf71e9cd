"""The recipe `dynamic`: scenes that move, such as those of D-NeRF, whose frames have a time (docs/recipes/dynamic.md).

A network moves the points of each moment into one canonical hash-grid scene. The occupancy grid holds what is occupied
at any time: cells are visited at random training times, and forget slowly in a box (docs/LOG.md has the rest).
"""

from __future__ import annotations

from dataclasses import replace

from raymine.contracts import Scene
from raymine.errors import ConfigError
from raymine.fields.dynamic_field import DynamicFieldConfig
from raymine.fields.motion import MotionConfig
from raymine.recipes.about import described
from raymine.recipes.ngp import hash_grid, ngp
from raymine.step import TrainConfig
from raymine.step.config import BatchConfig


@described(
    "a hash grid into which a network moves the points of each moment (D-NeRF)",
    scenes="scenes whose frames have times",
    time="a minute on a GPU or a CPU",
    figure="trex 800x800 37.5 dB after 60 s (H200); 100x100 32.4 dB after a minute (2 cores)",
)
def dynamic(scene: Scene, device: str) -> TrainConfig:
    """For scenes whose frames have times. `ConfigError` for one without."""
    if not scene.dynamic:
        raise ConfigError(
            "The recipe `dynamic` is for scenes that move, and the frames of this scene have no `time`.",
            hint="Use the recipe `ngp`, or give every frame a `time` in 0..1.",
        )
    return _cpu(scene) if device == "cpu" else _cuda(scene)


def _cpu(scene: Scene) -> TrainConfig:
    base = ngp(scene, "cpu")
    grid = hash_grid(scene, levels=8, features=4, log2_entries=16, most=1024)
    motion = MotionConfig(width=32, depth=3, rate=0.2, position_frequencies=3, time_frequencies=4)
    return replace(
        base,
        field=DynamicFieldConfig(grid, width=32, motion=motion),
        batch=BatchConfig(samples=1 << 14, max_rays=1 << 12),
    )


def _cuda(scene: Scene) -> TrainConfig:
    """Wider and deeper than on a CPU, with products in bfloat16, in steps of 2^18 samples.

    In float16, gradients of the layers of motion overflowed after 900 steps of trex at 800x800 (H200): they grow with
    the resolution of the grid into which points are moved.
    """
    base = ngp(scene, "cuda")
    grid = hash_grid(scene, levels=8, features=4, log2_entries=19, most=2048)
    return replace(
        base,
        field=DynamicFieldConfig(grid, width=64, motion=MotionConfig(width=128, depth=4, position_frequencies=4)),
        batch=BatchConfig(samples=1 << 18, max_rays=1 << 16),
        optimiser=replace(base.optimiser, beta2=0.99, final=0.1),
        amp="bf16",
        default_steps=30_000,
    )

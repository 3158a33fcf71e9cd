"""The recipe `ngp`: hash grid, occupancy grid, Adam. Sizes depend on the device: steps on a CPU are much smaller.

Lengths depend on the scene: `pixel` is the footprint of a pixel, in world units, at the centre of the box.
"""

from __future__ import annotations

import math
import statistics

from raymine.contracts import Scene
from raymine.fields import HashFieldConfig
from raymine.kernels.hash_grid.op import GridSpec
from raymine.losses import ColourLoss
from raymine.mining import HardConfig, MiningConfig
from raymine.pixels import PixelConfig
from raymine.recipes.about import described
from raymine.samplers import OccupancyConfig
from raymine.step import TrainConfig
from raymine.step.config import BatchConfig
from raymine.step.optimiser import OptimiserConfig


@described(
    "hash grid with small networks, occupancy grid (Instant-NGP)",
    scenes="scenes in a box, such as objects without a background",
    time="seconds on a GPU, a minute on a CPU",
    figure="lego 800x800 35 dB after 1.3 s (H200); 32.1 dB at 200x200 after a minute (2 cores)",
)
def ngp(scene: Scene, device: str) -> TrainConfig:
    """The default recipe, for bounded and unbounded static scenes."""
    return _cpu(scene) if device == "cpu" else _cuda(scene)


@described(
    "`ngp` with more levels and wider networks",
    scenes="the same, where quality is worth half a minute; on a CPU it is `ngp`",
    time="half a minute on a GPU",
    figure="lego 800x800 37.1 dB after 26 s (H200)",
)
def ngp_large(scene: Scene, device: str) -> TrainConfig:
    """A larger model, which trains more slowly and reaches a higher PSNR. On a CPU, too slow for it, it is `ngp`."""
    return _cpu(scene) if device == "cpu" else _cuda(scene, large=True)


def _cpu(scene: Scene) -> TrainConfig:
    """Few levels with many features, narrow networks, small steps: the highest PSNR in a minute (docs/LOG.md)."""
    unbounded = scene.bounds.unbounded
    side, pixel = _box_side(scene), _pixel_footprint(scene)
    grid = hash_grid(scene, levels=8, features=4, log2_entries=17, most=2048)
    return TrainConfig(
        field=HashFieldConfig(grid=grid, width=32),
        sampler=OccupancyConfig(
            resolution=64,
            step=min(side / 100, max(side / (200 if unbounded else 300), 1.2 * pixel)),
            cone=0.01 if unbounded else 0.0,
            cells=1 << 16,
            # In a short run of a large scene a cell gets few updates, so it must decay fast. In a small scene fast
            # decay removes thin structures.
            decay=0.8 if unbounded else 0.95,
            full_steps=64,
        ),
        batch=BatchConfig(samples=1 << 15, max_rays=1 << 13),
        # With few trained samples a high learning rate to the end is best; averaging removes the noise (docs/LOG.md).
        optimiser=OptimiserConfig(lr=2e-2, final=0.3, table_beta1=0.0, average=0.1),
        loss=(ColourLoss("l2"),),
        mining=MiningConfig(faint=1e-3),
        # Half of the rays are drawn by edges. Errors work as well, but not with wrong poses (docs/LOG.md).
        pixels=PixelConfig(policy="edges", reweight=False),
    )


def _cuda(scene: Scene, large: bool = False) -> TrainConfig:
    """Twice the published table size, and a small beta2, with which training is faster (docs/LOG.md).

    `large`, for runs of ten seconds and more: the usual beta2, more levels, wider networks with weight decay and, in a
    bounded scene, where all samples have the same length, samples of at most two thirds of the finest cell.
    """
    unbounded = scene.bounds.unbounded
    grid = hash_grid(scene, levels=12 if large else 8, features=4, log2_entries=20, most=4096)
    steps = max(600.0, 1.5 * grid.finest) if large and not unbounded else 600.0
    return TrainConfig(
        field=HashFieldConfig(grid=grid, width=128 if large else 64),
        sampler=OccupancyConfig(step=_box_side(scene) / steps, cone=0.004 if unbounded else 0.0, settle=1000),
        batch=BatchConfig(samples=1 << 20, max_rays=1 << 18),
        optimiser=OptimiserConfig(
            lr=2e-2,
            final=0.3,
            beta2=0.99 if large else 0.97,
            decay=0.01 if large else 0.0,
            table_beta1=0.0,
            average=0.1,
        ),
        loss=(ColourLoss("l2"),),
        mining=MiningConfig(hard=HardConfig(draw="poisson")),
        pixels=PixelConfig(policy="edges", cells=1 << 20),
        # The PSNR of test views of such scenes is highest after 25,000 to 60,000 steps (docs/LOG.md).
        max_useful_steps=40_000 if large and not unbounded else 0,
    )


def hash_grid(scene: Scene, levels: int, features: int, log2_entries: int, most: int) -> GridSpec:
    """Resolutions from 32 vertices per side (16 if space is contracted) to about one vertex per pixel, at most `most`.

    Coarser levels are more useful as additional levels in between, and finer ones overfit views (docs/LOG.md).
    """
    vertices = 1.25 * _box_side(scene) / _pixel_footprint(scene)
    finest = min(most, max(128, 2 ** round(math.log2(vertices))))
    return GridSpec(levels, features, log2_entries, base=16 if scene.bounds.unbounded else 32, finest=finest)


def _box_side(scene: Scene) -> float:
    """The longest side of the inner box, in world units."""
    return max(b - a for a, b in zip(scene.bounds.low, scene.bounds.high, strict=True))


def _pixel_footprint(scene: Scene) -> float:
    """The footprint of a pixel at the centre of the box, in world units; the median over frames."""
    centre = [(a + b) / 2 for a, b in zip(scene.bounds.low, scene.bounds.high, strict=True)]
    sizes = [math.dist(frame.pose[:, 3], centre) / scene.cameras[frame.camera].fx for frame in scene.frames]
    return max(statistics.median(sizes), 1e-4 * _box_side(scene))

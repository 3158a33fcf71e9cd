"""`ngp`: hash grid, occupancy marching, Adam. Sizes suit the device: what a GPU digests in a step would stall a CPU.

Lengths follow from the scene: `pixel` is how much of it one pixel covers, at the centre of the box.
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
from raymine.samplers import OccupancyConfig
from raymine.step import TrainConfig
from raymine.step.config import BatchConfig
from raymine.step.optimiser import OptimiserConfig


def ngp(scene: Scene, device: str) -> TrainConfig:
    """The default recipe, for bounded and unbounded static scenes."""
    return _cpu(scene) if device == "cpu" else _cuda(scene)


def ngp_large(scene: Scene, device: str) -> TrainConfig:
    """A larger model that learns more slowly and ends higher. On a CPU, which would take too long, it is `ngp`."""
    return _cpu(scene) if device == "cpu" else _cuda(scene, large=True)


def _cpu(scene: Scene) -> TrainConfig:
    """Few wide levels, narrow networks, small steps: what reaches the highest PSNR in a minute (docs/LOG.md)."""
    unbounded = scene.bounds.unbounded
    side, pixel = _box_side(scene), _pixel_footprint(scene)
    grid = _grid(scene, levels=8, features=4, log2_entries=17, most=2048)
    return TrainConfig(
        field=HashFieldConfig(grid=grid, width=32),
        sampler=OccupancyConfig(
            resolution=64,
            step=min(side / 100, max(side / (200 if unbounded else 300), 1.2 * pixel)),
            cone=0.01 if unbounded else 0.0,
            cells=1 << 16,
            # Few updates reach a cell in a short run of a large scene; in a small one, forgetting fast eats thin parts.
            decay=0.8 if unbounded else 0.95,
            full_steps=64,
        ),
        batch=BatchConfig(samples=1 << 15, max_rays=1 << 13),
        # Few trained samples need a high rate to the end; the average takes out the noise (docs/LOG.md).
        optimiser=OptimiserConfig(lr=2e-2, final=0.3, table_beta1=0.0, average=0.1),
        loss=(ColourLoss("l2"),),
        mining=MiningConfig(faint=1e-3),
        # Half of the rays go where detail is. Following errors does as well, but not with wrong poses (docs/LOG.md).
        pixels=PixelConfig(policy="edges", reweight=False),
    )


def _cuda(scene: Scene, large: bool = False) -> TrainConfig:
    """Twice the published table, and an Adam that soon forgets how large gradients were, which is quicker. `large`, for
    ten seconds and more: an Adam with the usual memory, more levels, wider networks whose weights decay and, where all
    samples are alike in length, samples no longer than two thirds of the finest cells (docs/LOG.md)."""
    unbounded = scene.bounds.unbounded
    grid = _grid(scene, levels=12 if large else 8, features=4, log2_entries=20, most=4096)
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
        # Test views of such a scene have their highest PSNR after 25,000 to 60,000 steps (docs/LOG.md).
        max_useful_steps=40_000 if large and not unbounded else 0,
    )


def _grid(scene: Scene, levels: int, features: int, log2_entries: int, most: int) -> GridSpec:
    """From 32 vertices along a side (16 where space is contracted) to about one a pixel, at most `most`.

    Coarser levels are better spent on a closer spacing, and finer ones learn views, not the scene (docs/LOG.md).
    """
    vertices = 1.25 * _box_side(scene) / _pixel_footprint(scene)
    finest = min(most, max(128, 2 ** round(math.log2(vertices))))
    return GridSpec(levels, features, log2_entries, base=16 if scene.bounds.unbounded else 32, finest=finest)


def _box_side(scene: Scene) -> float:
    """The longest side of the inner box."""
    return max(b - a for a, b in zip(scene.bounds.low, scene.bounds.high, strict=True))


def _pixel_footprint(scene: Scene) -> float:
    """World units that a pixel covers at the centre of the box, in the median over frames."""
    centre = [(a + b) / 2 for a, b in zip(scene.bounds.low, scene.bounds.high, strict=True)]
    sizes = [math.dist(frame.pose[:, 3], centre) / scene.cameras[frame.camera].fx for frame in scene.frames]
    return max(statistics.median(sizes), 1e-4 * _box_side(scene))

"""The recipe `voxels`: a sparse grid with spherical harmonics and no network, as in Plenoxels.

The grid starts coarse and full. Empty vertices are removed, and it becomes finer where something is.
"""

from __future__ import annotations

import math

from raymine.contracts import Scene
from raymine.errors import ConfigError
from raymine.fields.voxel_field import VoxelFieldConfig
from raymine.losses import ColourLoss, TotalVariation
from raymine.mining import HardConfig, MiningConfig
from raymine.pixels import PixelConfig
from raymine.recipes.about import described
from raymine.recipes.ngp import ngp
from raymine.recipes.planes import finest
from raymine.samplers import OccupancyConfig
from raymine.step import TrainConfig
from raymine.step.config import BatchConfig
from raymine.step.optimiser import OptimiserConfig


@described(
    "a sparse grid of densities and spherical harmonics, without a network (Plenoxels)",
    scenes="static scenes in a box",
    time="minutes on a GPU, a minute on a CPU",
    figure="lego 800x800 34.1 dB after 110 s (H200)",
)
def voxels(scene: Scene, device: str) -> TrainConfig:
    """For static scenes in a box. `ConfigError` for others."""
    if scene.bounds.unbounded:
        raise ConfigError(
            "The recipe `voxels` needs a box around the scene, and this scene is unbounded.",
            hint="Use the recipe `unbounded`, `proposal` or `planes`.",
        )
    if scene.dynamic:
        raise ConfigError(
            "The recipe `voxels` is for scenes that stand still, and frames of this scene have times.",
            hint="Use the recipe `planes`, which has planes over time.",
        )
    return _cpu(scene) if device == "cpu" else _cuda(scene)


def _cpu(scene: Scene) -> TrainConfig:
    side = finest(scene, 192)
    field = VoxelFieldConfig(
        resolutions=(side // 3, side // 2, side),
        # Shares of the run: a step takes long, and most runs have a few hundred.
        grow_at=(0.2, 0.45),
        rows=1 << 19,
        colour_rate=0.3,
        variation_rows=1 << 12,
    )
    sampler = ngp(scene, "cpu").sampler
    assert isinstance(sampler, OccupancyConfig)
    # Steps of a small scene, or of large images, are short. If the first samples were faint, nothing would be trained.
    first_opacity = 1 - math.exp(-sampler.step * math.exp(field.start - 1))
    return TrainConfig(
        field=field,
        sampler=sampler,
        batch=BatchConfig(samples=1 << 15, max_rays=1 << 13),
        # Lego at 100x100, 400 steps, held-out views: 31.0 dB; with 0.1 for both tables 19.7, with 1.0 for both 25.6.
        optimiser=OptimiserConfig(lr=1.0, final=0.3, table_beta1=0.0, average=0.1),
        loss=(ColourLoss("l2"), TotalVariation(1e-3)),
        mining=MiningConfig(faint=min(1e-3, first_opacity / 2)),
        pixels=PixelConfig(policy="edges", reweight=False),
    )


def _cuda(scene: Scene) -> TrainConfig:
    side = finest(scene, 512)
    return TrainConfig(
        field=VoxelFieldConfig(
            resolutions=(side // 4, side // 2, side),
            grow_at=(3000, 9000),
            prune_at=(6000, 15000, 25000),
            # 512^3 of lego needs 6.3 million vertices.
            rows=1 << 23,
            colour_rate=0.5,
            variation_rows=1 << 16,
        ),
        sampler=ngp(scene, "cuda").sampler,
        batch=BatchConfig(samples=1 << 18, max_rays=1 << 16),
        # With 1.0 nothing is learnt: densities overshoot, and the whole box stays occupied.
        optimiser=OptimiserConfig(lr=0.2, final=0.03, table_beta1=0.0, average=0.1),
        loss=(ColourLoss("l2"), TotalVariation(1e-3)),
        mining=MiningConfig(hard=HardConfig(draw="poisson")),
        pixels=PixelConfig(policy="edges", cells=1 << 20),
        default_steps=28_000,
    )

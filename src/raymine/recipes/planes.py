"""The recipe `planes`: features from planes instead of a hash grid, for scenes that stand still and scenes that move.

A static scene has three planes at each resolution (K-Planes' product; TensoRF's is `field.product=vm`); a scene with
times has six. Everything else is as in `ngp`: the occupancy grid, small networks, mining.
"""

from __future__ import annotations

from raymine.contracts import Scene
from raymine.fields.plane_field import PlaneFieldConfig
from raymine.losses import ColourLoss, TotalVariation
from raymine.mining import HardConfig, MiningConfig
from raymine.pixels import PixelConfig
from raymine.recipes.about import described
from raymine.recipes.ngp import hash_grid, ngp
from raymine.step import TrainConfig
from raymine.step.config import BatchConfig
from raymine.step.optimiser import OptimiserConfig


@described(
    "features from products of planes at several resolutions (K-Planes, TensoRF)",
    scenes="scenes with and without a box, with and without times",
    time="minutes on a GPU, a minute on a CPU",
    figure="lego 800x800 36.2 dB after 60 s (H200)",
)
def planes(scene: Scene, device: str) -> TrainConfig:
    """For bounded and unbounded scenes, with and without times."""
    return _cpu(scene) if device == "cpu" else _cuda(scene)


def _cpu(scene: Scene) -> TrainConfig:
    side = finest(scene, 256)
    base = ngp(scene, "cpu")
    return TrainConfig(
        field=PlaneFieldConfig(
            resolutions=(side // 4, side // 2, side),
            features=16,
            times=times_of(scene, 32),
            width=32,
            network_rate=0.3,
        ),
        sampler=base.sampler,
        batch=BatchConfig(samples=1 << 15, max_rays=1 << 13),
        # Lego at 100x100, 600 steps, held-out views: 32.1 dB; with lr 2e-2 and final 0.1, 4 dB less after 300 steps.
        optimiser=OptimiserConfig(lr=4e-2, final=0.3, table_beta1=0.0, average=0.1),
        loss=(ColourLoss("l2"), TotalVariation(1e-3)),
        mining=MiningConfig(faint=1e-3),
        pixels=PixelConfig(policy="edges", reweight=False),
    )


def _cuda(scene: Scene) -> TrainConfig:
    side = finest(scene, 512)
    base = ngp(scene, "cuda")
    return TrainConfig(
        field=PlaneFieldConfig(
            resolutions=(side // 8, side // 4, side // 2, side),
            features=32,
            times=times_of(scene, 150),
            width=64,
            network_rate=0.3,
        ),
        sampler=base.sampler,
        batch=BatchConfig(samples=1 << 18, max_rays=1 << 16),
        # Lego, 16 s, held-out views: 35.95 dB; with lr 2e-2 35.75, with planes up to 1024 and half the features 35.12.
        optimiser=OptimiserConfig(lr=4e-2, final=0.1, table_beta1=0.0, average=0.1),
        loss=(ColourLoss("l2"), TotalVariation(1e-3)),
        mining=MiningConfig(hard=HardConfig(draw="poisson")),
        pixels=PixelConfig(policy="edges", cells=1 << 20),
    )


def finest(scene: Scene, most: int) -> int:
    """Vertices a side of the finest planes: about one for each pixel, at most `most`."""
    return min(most, hash_grid(scene, levels=2, features=2, log2_entries=19, most=4096).finest)


def times_of(scene: Scene, most: int) -> int:
    """Vertices along time: one for every second moment that was photographed, at most `most`; 0 for a static scene."""
    moments = {frame.time for frame in scene.frames if frame.time is not None}
    return min(most, max(2, len(moments) // 2)) if scene.dynamic else 0

"""The recipe `proposal`: the hash-grid field, with samples placed by proposal networks instead of an occupancy grid.

What it is for: unbounded scenes, which no grid covers. Space is contracted, and rays reach 1000 units far.
"""

from __future__ import annotations

from raymine.contracts import Scene
from raymine.fields import HashFieldConfig
from raymine.fields.density_grid import DensityGridConfig
from raymine.kernels.hash_grid.op import GridSpec
from raymine.losses import ColourLoss, InterlevelLoss
from raymine.mining import HardConfig, MiningConfig
from raymine.pixels import PixelConfig
from raymine.recipes.about import described
from raymine.recipes.ngp import hash_grid
from raymine.samplers.proposal import ProposalConfig
from raymine.step import TrainConfig
from raymine.step.config import BatchConfig
from raymine.step.optimiser import OptimiserConfig


@described(
    "the hash grid with samples from proposal networks instead of an occupancy grid",
    scenes="photos with a background that reaches far",
    time="minutes on a GPU",
    figure="bonsai 400x266 25.4 dB after a minute on held-out views (2 cores)",
)
def proposal(scene: Scene, device: str) -> TrainConfig:
    """Published numbers of samples on CUDA; on a CPU a third of them and smaller networks."""
    return _cpu(scene) if device == "cpu" else _cuda(scene)


def _cpu(scene: Scene) -> TrainConfig:
    finest = (64, 128) if scene.bounds.unbounded else (64,)
    networks = tuple(_network(levels=4, log2_entries=14, finest=each) for each in finest)
    return TrainConfig(
        field=HashFieldConfig(grid=hash_grid(scene, levels=8, features=4, log2_entries=17, most=2048), width=32),
        sampler=ProposalConfig(
            networks,
            samples=(64, 32)[: len(networks)],
            final=24,
            anneal_steps=100,
            every=2,
            every_step_until=100,
        ),
        batch=BatchConfig(samples=1 << 15, max_rays=1 << 13),
        optimiser=OptimiserConfig(lr=2e-2, final=0.3, table_beta1=0.0, average=0.1),
        loss=(ColourLoss("l2"), InterlevelLoss()),
        mining=MiningConfig(faint=1e-3),
        pixels=PixelConfig(policy="edges", reweight=False),
    )


def _cuda(scene: Scene) -> TrainConfig:
    unbounded = scene.bounds.unbounded
    networks = tuple(_network(levels=5, log2_entries=17, finest=each) for each in ((128, 256) if unbounded else (128,)))
    return TrainConfig(
        field=HashFieldConfig(grid=hash_grid(scene, levels=8, features=4, log2_entries=20, most=4096), width=64),
        sampler=ProposalConfig(networks, samples=(256, 96) if unbounded else (128,), final=48 if unbounded else 64),
        batch=BatchConfig(samples=1 << 18, max_rays=1 << 14),
        optimiser=OptimiserConfig(lr=1e-2, final=0.1, table_beta1=0.0, average=0.1),
        loss=(ColourLoss("l2"), InterlevelLoss()),
        mining=MiningConfig(hard=HardConfig(draw="poisson")),
        pixels=PixelConfig(policy="edges", cells=1 << 20),
    )


def _network(levels: int, log2_entries: int, finest: int) -> DensityGridConfig:
    return DensityGridConfig(GridSpec(levels, 2, log2_entries, base=16, finest=finest))

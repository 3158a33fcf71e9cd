"""`vanilla`: the original NeRF, a positional-encoding MLP with coarse-to-fine sampling (Mildenhall et al., 2020).

What it is for: a baseline without tables or grids, and scenes that need few parameters. It learns slowly; on a CPU it
is a small network that shows how it works.
"""

from __future__ import annotations

from raymine.contracts import Scene
from raymine.fields.mlp_field import MlpFieldConfig
from raymine.losses import CoarseColourLoss, ColourLoss
from raymine.mining import HardConfig, MiningConfig
from raymine.samplers.hierarchical import HierarchicalConfig
from raymine.step import TrainConfig
from raymine.step.config import BatchConfig
from raymine.step.optimiser import OptimiserConfig


def vanilla(scene: Scene, device: str) -> TrainConfig:
    """Published sizes on CUDA; on a CPU a quarter of the width, half of the depth and a third of the samples."""
    if device == "cpu":
        network = MlpFieldConfig(depth=4, width=64, skip=3, position_frequencies=8)
        sampler = HierarchicalConfig(network, coarse=32, fine=32)
        batch = BatchConfig(samples=1 << 14, max_rays=1 << 12)
        optimiser = OptimiserConfig(lr=2e-3, final=0.1, beta2=0.999, eps=1e-8, average=0.1)
    else:
        network = MlpFieldConfig()
        sampler = HierarchicalConfig(network, coarse=64, fine=128)
        batch = BatchConfig(samples=1 << 18, max_rays=1 << 13)
        optimiser = OptimiserConfig(lr=1e-3, final=0.1, beta2=0.999, eps=1e-8, warmup=500, average=0.1)
    return TrainConfig(
        field=network,
        sampler=sampler,
        loss=(ColourLoss("l2"), CoarseColourLoss()),
        batch=batch,
        optimiser=optimiser,
        mining=MiningConfig(hard=HardConfig(draw="poisson" if device != "cpu" else "systematic")),
        default_steps=100_000 if device != "cpu" else 5_000,
    )

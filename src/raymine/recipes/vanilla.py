"""The original NeRF, a positional-encoding MLP (Mildenhall et al., 2020): `vanilla` and `vanilla-grid`.

`vanilla` samples coarse to fine, as published. `vanilla-grid` has the same network behind an occupancy grid: empty
space costs nothing, and a step has fixed shapes, so that it is one CUDA graph (`engines/captured.py`).

What they are for: a baseline without tables, and models of 2 MB. They learn slowly; on a CPU the network is small and
shows how it works.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from raymine.contracts import Scene
from raymine.fields.mlp_field import MlpFieldConfig
from raymine.kernels.activations import NGP
from raymine.losses import CoarseColourLoss, ColourLoss
from raymine.mining import HardConfig, MiningConfig
from raymine.pixels import PixelConfig
from raymine.recipes.about import described
from raymine.recipes.ngp import ngp
from raymine.samplers import OccupancyConfig
from raymine.samplers.hierarchical import HierarchicalConfig
from raymine.step import TrainConfig
from raymine.step.config import BatchConfig
from raymine.step.optimiser import OptimiserConfig


@described(
    "the original NeRF: MLP 8 x 256 with positional encoding, coarse and fine network",
    scenes="scenes in a box, as a baseline or a model of 5 MB",
    time="hours on a GPU",
    figure="lego 400x400 20.8 dB after 40 s (H200)",
)
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


@described(
    "the MLP of `vanilla` behind an occupancy grid, in half precision",
    scenes="scenes in a box, as a baseline or a model of 2 MB",
    time="minutes on a GPU",
    figure="lego 800x800 34.2 dB after 120 s (H200)",
    page="vanilla",
)
def vanilla_grid(scene: Scene, device: str) -> TrainConfig:
    """The published network on CUDA; on a CPU a quarter of the width and half of the depth.

    Its density is exp(x - 1), as that of the hash-grid field, so `judge` has the gradient of its loss in closed form.
    """
    base = ngp(scene, device)
    grid = cast("OccupancyConfig", base.sampler)
    if device == "cpu":
        network = MlpFieldConfig(depth=4, width=64, skip=3, position_frequencies=8, density=NGP.density)
        # An update of all cells evaluates the network at each: a coarse grid, or updates take longer than steps.
        sampler = replace(grid, resolution=32, cells=1 << 13)
        batch = BatchConfig(samples=1 << 14, max_rays=1 << 12)
        optimiser = OptimiserConfig(lr=3e-3, final=0.1, eps=1e-8, average=0.1)
    else:
        network, sampler = MlpFieldConfig(density=NGP.density), grid
        # Lego, 18 s, held-out views: 28.9 dB; 2^17 samples 28.8, 2^18 and lr 1e-3 25.4, 2^16 and lr 1e-3 27.3.
        batch = BatchConfig(samples=1 << 16, max_rays=1 << 13)
        optimiser = OptimiserConfig(lr=2e-3, final=0.05, beta2=0.99, eps=1e-8, warmup=500, average=0.1)
    return TrainConfig(
        field=network,
        sampler=sampler,
        loss=(ColourLoss("l2"),),
        batch=batch,
        optimiser=optimiser,
        mining=base.mining,
        pixels=PixelConfig(),
        amp="auto" if device == "cpu" else "fp16",
        default_steps=50_000 if device != "cpu" else 5_000,
    )

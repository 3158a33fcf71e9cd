"""A sampler of your own in raymine's trainer: even steps along a ray, and more where the field has weight.

    python examples/07_own_sampler.py [SCENE] [--steps 300] [--downscale 4] [--out own_sampler]

What you write is a class with a method `sample`, a frozen dataclass that builds it, and a recipe. The field, the loss
and mining are raymine's. Random numbers come from `draws`, so a run repeats bit for bit and can be resumed.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import raymine
from raymine import recipes
from raymine.contracts import Bounds, Draws, Field, Rays, Rounds, Scene, activations_of
from raymine.samplers.intervals import Intervals, limits, midpoints, packed
from raymine.step import TrainConfig
from raymine.toolkit.importance import importance_samples
from raymine.toolkit.volume import weights_from_density


@dataclass(frozen=True)
class TwoLooksConfig:
    """`coarse` even intervals on a ray, of which the field's density is asked; then `fine` intervals by weight."""

    coarse: int = 48
    fine: int = 32

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> TwoLooks:
        return TwoLooks(self, bounds, device)


class TwoLooks:
    def __init__(self, config: TwoLooksConfig, bounds: Bounds, device: torch.device) -> None:
        self.config, self.box = config, torch.tensor((*bounds.low, *bounds.high), device=device)

    @torch.no_grad()
    def sample(self, rays: Rays, field: Field, draws: Draws | None = None) -> Rounds:
        """rays [R] -> packed samples. draws: None when pictures are rendered."""
        near, far = limits(rays, self.box)
        hit = (near < far).nonzero()[:, 0]
        near, far = near[hit, None], far[hit, None]
        edges = near + (far - near) * torch.linspace(0, 1, self.config.coarse + 1, device=near.device)
        middle = midpoints(rays, Intervals(edges, hit))
        raw = field.density(middle.positions, middle.time).view(len(hit), -1)
        density = activations_of(field).density(raw)
        weights = weights_from_density(edges[:, :-1], edges[:, 1:], density).weights
        # A tenth of the samples goes everywhere, so that nothing stays unseen for ever.
        share = 0.9 * weights + 0.1 * (weights.sum(1, keepdim=True) + 1e-3) / self.config.coarse
        cdf = torch.cat((torch.zeros_like(near), share.cumsum(1)), 1)
        shift = False if draws is None else draws.of_rays(1000, len(rays))[hit, 0]
        fine = importance_samples(edges, cdf / cdf[:, -1:], self.config.fine, stratified=shift).edges
        return Rounds(packed(Intervals(fine, hit), len(rays)))


def own_recipe(scene: Scene, device: str) -> TrainConfig:
    """The recipe `ngp` with another sampler."""
    return replace(recipes.build("ngp", scene, device), sampler=TwoLooksConfig())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with a sampler of your own.")
    parser.add_argument("scene", nargs="?", default="builtin")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--downscale", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("own_sampler"))
    options = parser.parse_args()
    common = {"steps": options.steps, "downscale": options.downscale}
    for name, recipe in (("own", own_recipe), ("ngp", "ngp")):
        run = raymine.train(options.scene, recipe, out=options.out / name, **common)
        print(f"{name}: PSNR {run.evaluate(views=5).psnr:.2f} dB")


if __name__ == "__main__":
    main()

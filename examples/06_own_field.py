"""A field of your own in raymine's trainer: a grid of densities and colours, without a network.

    python examples/06_own_field.py [SCENE] [--steps 300] [--downscale 4] [--side 64] [--out own_field]

What you write is a module, a frozen dataclass that builds it, and a function that puts it into a recipe.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import raymine
from raymine import recipes
from raymine.contracts import Bounds, FieldInput, FieldOutput, Scene
from raymine.kernels.activations import Activation, Activations
from raymine.step import TrainConfig


@dataclass(frozen=True)
class GridConfig:
    """A grid of side^3 vertices over the box of the scene."""

    side: int = 64

    def build(self, bounds: Bounds, seed: int, device: torch.device) -> GridField:
        return GridField(self.side, bounds).to(device)


class GridField(nn.Module):
    """Four numbers a vertex, density and colour before activation, interpolated. Colour depends on no direction."""

    activations = Activations(Activation("softplus"), Activation("sigmoid"))

    def __init__(self, side: int, bounds: Bounds) -> None:
        super().__init__()
        self.vertices = nn.Parameter(torch.zeros(1, 4, side, side, side))
        self.register_buffer("low", torch.tensor(bounds.low), persistent=False)
        self.register_buffer("high", torch.tensor(bounds.high), persistent=False)

    def lookup(self, positions: Tensor) -> Tensor:
        """[n, 3] -> [n, 4]"""
        at = 2 * (positions - self.low) / (self.high - self.low) - 1
        return nn.functional.grid_sample(self.vertices, at[None, None, None], align_corners=True)[0, :, 0, 0].T

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        return self.lookup(positions)[:, 0] * 30

    def forward(self, query: FieldInput) -> FieldOutput:
        found = self.lookup(query.positions)
        return FieldOutput(colour=found[:, 1:] * 10, density=found[:, 0] * 30)


def own_recipe(scene: Scene, device: str) -> TrainConfig:
    """The recipe `ngp`, with its samplers, loss and mining, around another field."""
    base = recipes.build("ngp", scene, device)
    return replace(base, field=GridConfig(), optimiser=replace(base.optimiser, lr=0.02))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a field of your own.")
    parser.add_argument("scene", nargs="?", default="builtin")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--downscale", type=int, default=4)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("own_field"))
    options = parser.parse_args()
    settings = {"field.side": options.side}
    common = {"steps": options.steps, "downscale": options.downscale, "overrides": settings}
    run = raymine.train(options.scene, own_recipe, out=options.out / "run", **common)
    print(f"PSNR {run.evaluate(views=5, out=options.out / 'scores').psnr:.2f} dB, {options.side}^3 vertices")


if __name__ == "__main__":
    main()

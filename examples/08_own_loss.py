"""A loss term of your own in raymine's trainer: a ray is to be opaque or empty, so that no fog stays.

    python examples/08_own_loss.py [SCENE] [--steps 300] [--downscale 4] [--weight 0.01] [--out own_loss]

What you write is a frozen dataclass that says what it reads and computes a number. The same run without it follows.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch import Tensor

import raymine
from raymine import recipes
from raymine.contracts import LossView, Reads, Scene
from raymine.errors import ConfigError
from raymine.step import TrainConfig


@dataclass(frozen=True)
class Decided:
    """`weight` times the mean of 4 o (1 - o) over rays, with the opacity o: a ray is to be opaque or empty."""

    reads: ClassVar[Reads] = "rays"
    weight: float = 0.01

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise ConfigError(f"`weight` must be at least 0, got {self.weight}.")

    def __call__(self, view: LossView) -> Tensor:
        opacity = view.rendered.opacity
        cost = 4 * opacity * (1 - opacity) * view.wanted.weight
        return self.weight * cost.sum() / view.wanted.weight.sum().clamp_min(1)


def own_recipe(scene: Scene, device: str) -> TrainConfig:
    """The recipe `ngp` with one term more."""
    base = recipes.build("ngp", scene, device)
    return replace(base, loss=(*base.loss, Decided()))


def fog(run: raymine.Run) -> float:
    """Share of the pixels of test views that are neither empty nor opaque."""
    frames = [run.scene.frames[index] for index in run.scene.of_split("test")[:5]]
    opacity = np.stack([run.render(frame).opacity for frame in frames])
    return float(((opacity > 0.05) & (opacity < 0.95)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with a loss term of your own.")
    parser.add_argument("scene", nargs="?", default="builtin")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--downscale", type=int, default=4)
    parser.add_argument("--weight", type=float, default=0.01)
    parser.add_argument("--out", type=Path, default=Path("own_loss"))
    options = parser.parse_args()
    common = {"steps": options.steps, "downscale": options.downscale}
    with_term = {**common, "overrides": {"loss[1].weight": options.weight}}
    for name, recipe, settings in (("with", own_recipe, with_term), ("without", "ngp", common)):
        run = raymine.train(options.scene, recipe, out=options.out / name, **settings)
        print(f"{name} the term: PSNR {run.evaluate(views=5).psnr:.2f} dB, {fog(run):.1%} of the pixels are fog")


if __name__ == "__main__":
    main()

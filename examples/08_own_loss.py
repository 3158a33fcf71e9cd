"""A loss term of your own in raymine's trainer: density costs, so that empty space is empty.

    python examples/08_own_loss.py [SCENE] [--steps 300] [--downscale 4] [--weight 0.03] [--out own_loss]

What you write is a frozen dataclass that says what it reads and computes a number. The same run without it follows.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

import raymine
from raymine import recipes
from raymine.contracts import LossView, Reads, Scene, activations_of
from raymine.step import TrainConfig


@dataclass(frozen=True)
class SparseDensity:
    """`weight` times the mean of log(1 + 2 s^2) over samples, with s = density * length: a thin fog costs most."""

    reads: ClassVar[Reads] = "samples"
    weight: float = 0.03

    def __call__(self, view: LossView) -> Tensor:
        density = activations_of(view.field).density(view.output.density)
        length = view.samples.t_end - view.samples.t_start
        return self.weight * torch.log1p(2 * (density * length).square()).mean()


def own_recipe(scene: Scene, device: str) -> TrainConfig:
    """The recipe `ngp` with one term more."""
    base = recipes.build("ngp", scene, device)
    return replace(base, loss=(*base.loss, SparseDensity()))


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
    parser.add_argument("--weight", type=float, default=0.03)
    parser.add_argument("--out", type=Path, default=Path("own_loss"))
    options = parser.parse_args()
    common = {"steps": options.steps, "downscale": options.downscale}
    with_term = {**common, "overrides": {"loss[1].weight": options.weight}}
    for name, recipe, settings in (("with", own_recipe, with_term), ("without", "ngp", common)):
        run = raymine.train(options.scene, recipe, out=options.out / name, **settings)
        print(f"{name} the term: PSNR {run.evaluate(views=5).psnr:.2f} dB, {fog(run):.1%} of the pixels are fog")


if __name__ == "__main__":
    main()

"""Hard sample mining around a field and a training loop of your own, and the same training without it.

    python examples/01_mine_your_own_field.py [--steps 300]

The field, the loss and the loop are plain torch. A mined step runs the field on all samples without a graph, and trains
on those few that the loss still depends on. Each step draws new rays, so the PSNR is that of rays not trained on.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from torch import Tensor, nn

from raymine.mining import Miner
from raymine.toolkit.boxes import intersect
from raymine.toolkit.volume import rendering

RAYS, SAMPLES, NEAR, FAR = 256, 32, 1.0, 3.0


class Field(nn.Sequential):
    """Positions and directions [n, 3] -> colour and density [n, 4] before activation."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, points: Tensor, directions: Tensor) -> Tensor:
        waves = [f(scale * points) for scale in (2, 4, 8, 16) for f in (torch.sin, torch.cos)]
        return super().forward(torch.cat((points, directions, *waves), 1))


def draw_batch() -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """Inputs of the field along rays, edges of their samples [RAYS, SAMPLES + 1], and colours seen of a cube."""
    origins = 2 * nn.functional.normalize(torch.randn(RAYS, 3), dim=1)
    directions = nn.functional.normalize(1.4 * torch.rand(RAYS, 3) - 0.7 - origins, dim=1)
    distance, _, hit = intersect(origins, directions, torch.tensor([3 * [-0.4] + 3 * [0.4]]), miss=0.0)
    target = torch.where(hit, 0.5 + (origins + distance * directions) / 0.8, 1.0)
    edges = NEAR + (torch.arange(SAMPLES + 1) + torch.rand(RAYS, 1)) * ((FAR - NEAR) / SAMPLES)
    points = origins[:, None] + edges[:, :-1, None] * directions[:, None]
    return (points.flatten(0, 1), directions.repeat_interleave(SAMPLES, 0)), edges, target


def loss_of(raw: Tensor, edges: Tensor, target: Tensor) -> Tensor:
    """The loss [] of pre-activations [RAYS * SAMPLES, 4]: activations, rendering over white, mean squared error."""
    colour, density = raw.view(RAYS, SAMPLES, 4).split((3, 1), 2)
    radiance = colour.sigmoid(), (density[:, :, 0] - 1).clamp_max(6).exp()
    shown, *_ = rendering(edges[:, :-1], edges[:, 1:], rgb_sigma_fn=lambda *_: radiance, background=torch.ones(3))
    return (shown - target).square().mean()


def main() -> None:
    parser = argparse.ArgumentParser(description="Mining around a field and a loop of your own.")
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    for name in ("mined", "plain"):
        torch.manual_seed(0)
        field, miner = Field(), Miner(images=20)
        optimiser = torch.optim.Adam(field.parameters(), lr=5e-3)
        for step in range(steps):
            inputs, edges, target = draw_batch()
            objective = partial(loss_of, edges=edges, target=target)
            optimiser.zero_grad()
            if name == "mined":
                found = miner.backward(field, inputs, objective, step=step)
                loss, share = found.loss, len(found.selection.index) / len(inputs[0])
            else:
                loss, share = objective(field(*inputs)), 1.0
                loss.backward()
            optimiser.step()
            if step % max(1, steps // 6) == 0 or step == steps - 1:
                print(f"{name} step {step:4d}: PSNR {-10 * loss.log10():.2f} dB, {share:.2f} of the samples trained on")


if __name__ == "__main__":
    main()

"""Mining a field that changes with time, as published, and a look at what was picked.

    python examples/02_mine_a_dynamic_field.py [--steps 300]

Time is one more input [n] beside the positions: whatever `inputs` holds is cut down to the chosen samples together.
"""

from __future__ import annotations

import argparse
import itertools
import math

import torch
from torch import Tensor

from raymine.mining import PUBLISHED, Miner
from raymine.mining.diagnose import diagnose, transmittance_before
from raymine.mining.draw import norms

FRAMES, RAYS, SAMPLES, FAR = 20, 256, 48, 4.0


class MovingField(torch.nn.Module):
    """Positions [n, 3] and time [n] -> colour [n, 3] and density [n] before activation."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        sizes = (4 + 8 * 3, width, width, 4)
        pairs = itertools.pairwise(sizes)
        layers = [layer for pair in pairs for layer in (torch.nn.Linear(*pair), torch.nn.ReLU())]
        self.layers = torch.nn.Sequential(*layers[:-1])

    def forward(self, points: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat((points, time[:, None]), 1)
        waves = [f(x * scale) for scale in (1.5, 3.0, 6.0) for f in (torch.sin, torch.cos)]
        out = self.layers(torch.cat((x, *waves), 1))
        return out[:, :3], out[:, 3]


def draw_rays() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Origins and directions [RAYS, 3], times [RAYS], and the colours they see: a ball that goes left to right."""
    origins = 2.0 * torch.nn.functional.normalize(torch.randn(RAYS, 3), dim=1)
    directions = torch.nn.functional.normalize(1.4 * torch.rand(RAYS, 3) - 0.7 - origins, dim=1)
    time = torch.randint(FRAMES, (RAYS,)) / (FRAMES - 1)
    from_ball = origins - torch.stack((time - 0.5, 0 * time, 0 * time), 1)
    along = (from_ball * directions).sum(1)
    inside = along.square() - from_ball.square().sum(1) + 0.25
    normal = (from_ball + (-along - inside.clamp_min(0).sqrt())[:, None] * directions) / 0.5
    return origins, directions, time, torch.where(inside[:, None] > 0, 0.5 + 0.5 * normal, 1.0)


def render(colour: Tensor, density: Tensor) -> tuple[Tensor, Tensor]:
    """Pre-activations of RAYS * SAMPLES samples -> colours [RAYS, 3] over white, weights [RAYS, SAMPLES]."""
    optical = (density - 1.0).clamp_max(6.0).exp().reshape(RAYS, SAMPLES) * (FAR / SAMPLES)
    weights = torch.exp(-(optical.cumsum(1) - optical)) * -torch.expm1(-optical)
    seen = (weights[:, :, None] * colour.sigmoid().reshape(RAYS, SAMPLES, 3)).sum(1)
    return seen + 1 - weights.sum(1, keepdim=True), weights


def main() -> None:
    parser = argparse.ArgumentParser(description="Mining a field that changes with time.")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.manual_seed(0)
    field, miner = MovingField(), Miner(PUBLISHED, images=FRAMES)
    optimiser = torch.optim.Adam(field.parameters(), lr=5e-3)
    ray_id = torch.arange(RAYS).repeat_interleave(SAMPLES)
    for step in range(options.steps):
        origins, directions, time, target = draw_rays()
        t = (torch.arange(SAMPLES) + torch.rand(RAYS, 1)) * (FAR / SAMPLES)
        points = (origins[:, None] + t[:, :, None] * directions[:, None]).reshape(-1, 3)
        kept: list[Tensor] = []

        def objective(colour: Tensor, density: Tensor, target: Tensor = target, kept: list[Tensor] = kept) -> Tensor:
            shown, weights = render(colour, density)
            error = (shown - target).square().mean(1)
            kept[:] = weights.detach().flatten(), error.detach()
            return error.mean()

        optimiser.zero_grad()
        mined = miner.backward(field, (points, time[ray_id]), objective, step=step)
        optimiser.step()
        if step % max(1, options.steps // 6) == 0 or step == options.steps - 1:
            weights, error = kept
            through = transmittance_before(weights, ray_id, RAYS)
            found = diagnose(norms(mined.gradient), weights, through, ray_id, error, mined.selection)
            print(
                f"step {step:4d}   PSNR {-10 * math.log10(float(mined.loss)):.2f} dB   tau {found.tau:.2f}   "
                f"{found.share_samples:.2f} of the samples hold {found.share_gradient:.2f} of the gradient   "
                f"surface {found.surface.chosen}/{found.surface.all}   empty {found.empty.chosen}/{found.empty.all}   "
                f"occluded {found.occluded.chosen}/{found.occluded.all}"
            )


if __name__ == "__main__":
    main()

"""Mining a field that changes with time, as published, and a look at what was picked.

    python examples/02_mine_a_dynamic_field.py [--steps 300]

Time is one more input [n] beside the positions: whatever `inputs` holds is cut down to the chosen samples together.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from raymine.mining import PUBLISHED, Miner
from raymine.mining.diagnose import diagnose
from raymine.mining.draw import norms
from raymine.toolkit.boxes import intersect
from raymine.toolkit.volume import rendering

FRAMES, RAYS, SAMPLES, FAR = 20, 256, 48, 4.0
RAY_ID = torch.arange(RAYS).repeat_interleave(SAMPLES)


class MovingField(nn.Sequential):
    """Positions [n, 3] and time [n] -> colour and density [n, 4] before activation."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(28, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, points: Tensor, time: Tensor) -> Tensor:
        x = torch.cat((points, time[:, None]), 1)
        return super().forward(torch.cat((x, *(f(s * x) for s in (1.5, 3, 6) for f in (torch.sin, torch.cos))), 1))


def draw_batch() -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """Positions and times along rays, edges of the samples [RAYS, SAMPLES + 1], and colours seen of a cube."""
    origins = 2 * nn.functional.normalize(torch.randn(RAYS, 3), dim=1)
    directions = nn.functional.normalize(1.4 * torch.rand(RAYS, 3) - 0.7 - origins, dim=1)
    time = torch.randint(FRAMES, (RAYS,)) / (FRAMES - 1)
    from_cube = origins - torch.stack((time - 0.5, 0 * time, 0 * time), 1)
    distance, _, hit = intersect(from_cube, directions, torch.tensor([3 * [-0.4] + 3 * [0.4]]), miss=0.0)
    target = torch.where(hit, 0.5 + (from_cube + distance * directions) / 0.8, 1.0)
    edges = (torch.arange(SAMPLES + 1) + torch.rand(RAYS, 1)) * (FAR / SAMPLES)
    points = origins[:, None] + edges[:, :-1, None] * directions[:, None]
    return (points.flatten(0, 1), time[RAY_ID]), edges, target


def render(raw: Tensor, edges: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pre-activations [RAYS * SAMPLES, 4] -> errors of rays [RAYS], over white; weights, transmittances of samples."""
    colour, density = raw.view(RAYS, SAMPLES, 4).split((3, 1), 2)
    radiance, white = (colour.sigmoid(), (density[:, :, 0] - 1).clamp_max(6).exp()), torch.ones(3)
    shown, _, _, parts = rendering(edges[:, :-1], edges[:, 1:], rgb_sigma_fn=lambda *_: radiance, background=white)
    return (shown - target).square().mean(1), parts["weights"].flatten(), parts["trans"].flatten()


def main() -> None:
    parser = argparse.ArgumentParser(description="Mining a field that changes with time.")
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    field, miner = MovingField(), Miner(PUBLISHED, images=FRAMES)
    optimiser = torch.optim.Adam(field.parameters(), lr=5e-3)
    for step in range(steps):
        inputs, *seen = draw_batch()
        optimiser.zero_grad()
        mined = miner.backward(field, inputs, lambda raw, seen=seen: render(raw, *seen)[0].mean(), step=step)
        if step % max(1, steps // 6) == 0 or step == steps - 1:
            error, weights, through = (part.detach() for part in render(field(*inputs), *seen))
            found = diagnose(norms(mined.gradient), weights, through, RAY_ID, error, mined.selection)
            print(f"step {step:4d}: PSNR {-10 * mined.loss.log10():.2f} dB, tau {found.tau:.2f}")
            print(f"    {found.share_samples:.2f} of the samples hold {found.share_gradient:.2f} of the gradient")
            for name, kind in (("surface", found.surface), ("empty", found.empty), ("occluded", found.occluded)):
                print(f"    {kind.chosen} of {kind.all} {name} samples were chosen")
        optimiser.step()


if __name__ == "__main__":
    main()

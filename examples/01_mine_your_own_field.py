"""Hard sample mining around a field and a training loop of your own.

    python examples/01_mine_your_own_field.py [--steps 300] [--rays 256]

The field, the samples along rays, the compositing, the loss and the optimiser are plain torch; raymine adds the miner.
A step runs the field on all samples without a graph, finds which of them the loss still depends on, and trains on
those few. The same training without mining follows, for comparison. (The first mined step also compiles or loads a
kernel, which takes a second.)
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from torch import Tensor

from raymine.mining import Miner

VIEWS, SIZE, SAMPLES = 24, 32, 48
NEAR, FAR = 1.3, 2.7


class Field(torch.nn.Module):
    """Positions and directions [n, 3] -> colour and density [n, 4] before activation."""

    def __init__(self, frequencies: int = 5, width: int = 64) -> None:
        super().__init__()
        self.register_buffer("scales", math.pi * 2.0 ** torch.arange(frequencies))
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3 + 6 * frequencies + 3, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, 4),
        )

    def forward(self, points: Tensor, directions: Tensor) -> Tensor:
        angles = (points[:, :, None] * self.scales).flatten(1)
        return self.layers(torch.cat((points, angles.sin(), angles.cos(), directions), 1))


def look(view: int, size: int = SIZE) -> tuple[Tensor, Tensor]:
    """Origins and unit directions [size^2, 3] of the pixels of one view, from distance 2 towards the middle."""
    around, up = 2.4 * view, 0.8 * math.sin(1.7 * view)
    back = torch.tensor([math.cos(around) * math.cos(up), math.sin(around) * math.cos(up), math.sin(up)])
    right = torch.nn.functional.normalize(torch.linalg.cross(torch.tensor([0.0, 0.0, 1.0]), back), dim=0)
    y, x = torch.meshgrid(*(2 * [(torch.arange(size) + 0.5) / size - 0.5]), indexing="ij")
    directions = x[..., None] * right - y[..., None] * torch.linalg.cross(back, right) - 1.4 * back
    return (2.0 * back).expand(size * size, 3), torch.nn.functional.normalize(directions.reshape(-1, 3), dim=1)


def ball(origins: Tensor, directions: Tensor) -> Tensor:
    """What rays see [n, 3]: a ball of radius 0.6, coloured by its normal and striped, before white."""
    along = (origins * directions).sum(1)
    inside = along.square() - origins.square().sum(1) + 0.36
    normal = (origins + (-along - inside.clamp_min(0).sqrt())[:, None] * directions) / 0.6
    stripes = 0.75 + 0.25 * torch.sin(12.0 * normal[:, 2:])
    return torch.where(inside[:, None] > 0, (0.5 + 0.5 * normal) * stripes, 1.0)


def place(origins: Tensor, directions: Tensor, jitter: Tensor) -> tuple[Tensor, Tensor]:
    """Points and directions [n * SAMPLES, 3] of samples at equal distances, each ray's shifted by its jitter [n]."""
    t = NEAR + (torch.arange(SAMPLES) + jitter[:, None]) * ((FAR - NEAR) / SAMPLES)
    points = origins[:, None] + t[:, :, None] * directions[:, None]
    return points.reshape(-1, 3), directions.repeat_interleave(SAMPLES, 0)


def composite(raw: Tensor) -> Tensor:
    """Pre-activations [n * SAMPLES, 4] -> colours [n, 3] over white."""
    colour, density = raw.reshape(-1, SAMPLES, 4).split((3, 1), 2)
    optical = (density[:, :, 0] - 1.0).clamp_max(6.0).exp() * ((FAR - NEAR) / SAMPLES)
    through = torch.exp(-(optical.cumsum(1) - optical))
    weights = through * -torch.expm1(-optical)
    return (weights[:, :, None] * colour.sigmoid()).sum(1) + 1 - weights.sum(1, keepdim=True)


@torch.no_grad()
def psnr(field: Field) -> float:
    """Of a view that is not trained on, in dB."""
    rays = look(VIEWS)
    shown = composite(field(*place(*rays, torch.full((SIZE * SIZE,), 0.5))))
    return -10 * math.log10(float((shown - ball(*rays)).square().mean()))


def train(steps: int, rays: int, *, mined: bool) -> tuple[Field, float]:
    """A trained field, and the share of its samples that were trained on."""
    torch.manual_seed(0)
    field = Field()
    optimiser = torch.optim.Adam(field.parameters(), lr=5e-3)
    miner = Miner(images=VIEWS)
    origins, directions = (torch.cat(part) for part in zip(*(look(view) for view in range(VIEWS)), strict=True))
    target = ball(origins, directions)
    marched = trained = 0
    for step in range(steps):
        pick = torch.randint(len(target), (rays,))
        inputs = place(origins[pick], directions[pick], torch.rand(rays))

        def objective(raw: Tensor, wanted: Tensor = target[pick]) -> Tensor:
            return (composite(raw) - wanted).square().mean()

        optimiser.zero_grad()
        if mined:
            found = miner.backward(field, inputs, objective, step=step)
            loss, used = found.loss, len(found.selection.index)
        else:
            loss, used = objective(field(*inputs)), rays * SAMPLES
            loss.backward()
        optimiser.step()
        marched, trained = marched + rays * SAMPLES, trained + used
        if mined and (step % max(1, steps // 6) == 0 or step == steps - 1):
            print(f"step {step:4d}   loss {float(loss):.5f}   trained on {used / (rays * SAMPLES):.2f} of the samples")
    return field, trained / marched


def main() -> None:
    parser = argparse.ArgumentParser(description="Mining around a field and a loop of your own.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rays", type=int, default=256, help="rays a step")
    options = parser.parse_args()
    torch.manual_seed(0)
    print(f"untrained: PSNR {psnr(Field()):.2f} dB")
    for name, mined in (("mined", True), ("plain", False)):
        begin = time.perf_counter()
        field, share = train(options.steps, options.rays, mined=mined)
        seconds = time.perf_counter() - begin
        print(f"{name}: PSNR {psnr(field):.2f} dB, share trained {share:.2f}, {options.steps} steps in {seconds:.1f} s")


if __name__ == "__main__":
    main()

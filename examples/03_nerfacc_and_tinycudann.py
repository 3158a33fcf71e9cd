"""A radiance field written against nerfacc and tiny-cuda-nn, trained without either.

    python examples/03_nerfacc_and_tinycudann.py [SCENE] [--steps 1000] [--samples 16384] [--downscale 1]

The two `install` lines are all that ties the field and the loop to raymine: with the originals installed they can go,
and what is left needs CUDA. Images and cameras come from raymine's scenes; SCENE is a folder or the word `builtin`.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import torch
from torch import Tensor

import raymine.compat.nerfacc
import raymine.compat.tinycudann
from raymine.contracts import Scene
from raymine.experiment import evaluation_frames, open_data
from raymine.scenes import load_scene
from raymine.step import TrainData

raymine.compat.nerfacc.install()
raymine.compat.tinycudann.install()

import nerfacc  # noqa: E402
import tinycudann as tcnn  # noqa: E402

SMALL = {"n_levels": 8, "n_features_per_level": 4, "log2_hashmap_size": 15, "per_level_scale": 1.5}
LARGE = {"n_levels": 16, "n_features_per_level": 2, "log2_hashmap_size": 20, "per_level_scale": 1.32}


class Field(torch.nn.Module):
    """Density and view-dependent colour in a box [6]."""

    def __init__(self, box: Tensor, grid: dict[str, float]) -> None:
        super().__init__()
        self.register_buffer("box", box)
        network = {"otype": "FullyFusedMLP", "activation": "ReLU", "output_activation": "None", "n_neurons": 64}
        self.base = tcnn.NetworkWithInputEncoding(
            n_input_dims=3,
            n_output_dims=16,
            encoding_config={"otype": "HashGrid", "base_resolution": 16, **grid},
            network_config={**network, "n_hidden_layers": 1},
        )
        self.view = tcnn.Encoding(3, {"otype": "SphericalHarmonics", "degree": 4})
        self.head = tcnn.Network(
            n_input_dims=self.view.n_output_dims + 15,
            n_output_dims=3,
            network_config={**network, "output_activation": "Sigmoid", "n_hidden_layers": 2},
        )

    def density(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """[n, 3] -> density [n], features [n, 15]; nothing outside of the box."""
        unit = (points - self.box[:3]) / (self.box[3:] - self.box[:3])
        inside = ((unit > 0) & (unit < 1)).all(-1)
        out = self.base(unit.clamp(0, 1)).float()
        return torch.exp((out[:, 0] - 1).clamp_max(15)) * inside, out[:, 1:]

    def forward(self, points: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """-> colour [n, 3], density [n]."""
        density, features = self.density(points)
        view = self.view((directions + 1) / 2)
        return self.head(torch.cat((view.float(), features), -1)).float(), density


class Images:
    """All training images on the device, where a step finds its pixels without the host."""

    def __init__(self, data: TrainData, device: torch.device) -> None:
        count = len(data.rig)
        self.pixels = torch.cat(
            [torch.from_numpy(data.images.image(i).reshape(-1, 4)).to(device) for i in range(count)]
        )
        self.sizes = torch.from_numpy(data.images.sizes).to(device)
        areas = self.sizes.prod(1)
        self.first = areas.cumsum(0) - areas

    def draw(self, n: int) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Image, x and y [n] of random pixels, and their colours and opacities [n, 4]."""
        image = torch.randint(len(self.sizes), (n,), device=self.sizes.device)
        height, width = self.sizes[image].unbind(1)
        y, x = ((torch.rand(n, device=self.sizes.device) * side).long() for side in (height, width))
        return (image, x, y), self.pixels[self.first[image] + y * width + x] / 255


def render(
    field: Field, estimator: nerfacc.OccGridEstimator, rays: tuple[Tensor, Tensor], step: float, **options: Any
) -> tuple[Tensor, int]:
    """Colours [R, 3] of rays (origins, directions [R, 3]), and how many samples they took."""
    origins, directions = rays

    def points(t_starts: Tensor, t_ends: Tensor, ray_indices: Tensor) -> tuple[Tensor, Tensor]:
        along = directions[ray_indices]
        return origins[ray_indices] + along * (t_starts + t_ends)[:, None] / 2, along

    def sigma_fn(t_starts: Tensor, t_ends: Tensor, ray_indices: Tensor) -> Tensor:
        return field.density(points(t_starts, t_ends, ray_indices)[0])[0]

    def rgb_sigma_fn(t_starts: Tensor, t_ends: Tensor, ray_indices: Tensor) -> tuple[Tensor, Tensor]:
        return field(*points(t_starts, t_ends, ray_indices))

    background = options.pop("background")
    ray_indices, t_starts, t_ends = estimator.sampling(
        origins, directions, sigma_fn=sigma_fn, render_step_size=step, **options
    )
    colour, _, _, _ = nerfacc.rendering(
        t_starts, t_ends, ray_indices, len(origins), rgb_sigma_fn=rgb_sigma_fn, render_bkgd=background
    )
    return colour, len(t_starts)


@torch.no_grad()
def score(field: Field, estimator: nerfacc.OccGridEstimator, views: TrainData, step: float, white: Tensor) -> float:
    """Mean PSNR over views, in dB."""
    scores = []
    for index in range(len(views.rig)):
        rays = views.rig.rays_for_image(index)
        chunks = zip(rays.origins.split(1 << 15), rays.directions.split(1 << 15), strict=True)
        shown = torch.cat([render(field, estimator, chunk, step, background=white)[0] for chunk in chunks])
        rgba = torch.from_numpy(views.images.image(index).copy()).to(shown.device).reshape(-1, 4) / 255
        truth = torch.lerp(white.expand(len(rgba), 3), rgba[:, :3], rgba[:, 3:])
        scores.append(-10 * math.log10(float((shown.clamp(0, 1) - truth).square().mean())))
    return sum(scores) / len(scores)


def train(options: argparse.Namespace, scene: Scene, data: TrainData, views: TrainData) -> None:
    """The whole program but for its data."""
    device, cuda = torch.device(options.device), options.device != "cpu"
    samples = options.samples or (1 << 18 if cuda else 1 << 14)
    box = torch.tensor((*scene.bounds.low, *scene.bounds.high), device=device)
    step_size = float((box[3:] - box[:3]).max()) / (600 if cuda else 200)

    torch.manual_seed(0)
    field = Field(box, LARGE if cuda else SMALL).to(device)
    estimator = nerfacc.OccGridEstimator(box, resolution=128 if cuda else 64, levels=1).to(device)
    optimiser = torch.optim.Adam(field.parameters(), lr=1e-2, eps=1e-15)
    marks = [options.steps * part // 20 for part in (10, 15, 18)]
    schedule = torch.optim.lr_scheduler.ChainedScheduler(
        [
            torch.optim.lr_scheduler.LinearLR(optimiser, start_factor=0.01, total_iters=min(100, options.steps)),
            torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones=marks, gamma=0.33),
        ]
    )
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**10, enabled=cuda)
    images, rays = Images(data, device), 256
    began = time.perf_counter()
    for step in range(options.steps):
        estimator.train()
        estimator.update_every_n_steps(
            step=step, occ_eval_fn=lambda points: field.density(points)[0] * step_size, occ_thre=1e-2
        )
        (image, x, y), rgba = images.draw(rays)
        batch = data.rig.rays_for_pixels(image, x, y)
        background = torch.rand(rays, 3, device=device)
        colour, used = render(
            field, estimator, (batch.origins, batch.directions), step_size, background=background, stratified=True
        )
        rays = max(16, min(2 * rays, rays * samples // max(1, used)))
        if used == 0:
            continue
        loss = torch.nn.functional.smooth_l1_loss(colour, torch.lerp(background, rgba[:, :3], rgba[:, 3:]), beta=0.1)
        optimiser.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        schedule.step()
        if step % max(1, options.steps // 5) == 0:
            print(f"step {step:5d}   loss {loss.item():.5f}   {used} samples")
    seconds = time.perf_counter() - began
    field.eval()
    estimator.eval()
    white = torch.ones(3, device=device)
    print(
        f"PSNR {score(field, estimator, views, step_size, white):.2f} dB after {options.steps} steps, {seconds:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="A program for nerfacc and tiny-cuda-nn, without either.")
    parser.add_argument("scene", nargs="?", default="builtin")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=None, help="samples a step; 2^14 on a CPU, 2^18 on CUDA")
    parser.add_argument("--downscale", type=int, default=1)
    parser.add_argument("--views", type=int, default=5, help="held-out views to score")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    scene = load_scene(options.scene, downscale=options.downscale)
    with (
        open_data(scene, scene.of_split("train"), device, None) as seen,
        open_data(scene, evaluation_frames(scene, options.views), device, None) as unseen,
    ):
        train(options, scene, seen.train, unseen.train)


if __name__ == "__main__":
    main()

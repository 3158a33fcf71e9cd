"""A radiance field written against nerfacc and tiny-cuda-nn, trained on the built-in scene without either.

    python examples/03_nerfacc_and_tinycudann.py [--steps 1000]

The two `install` lines tie the field and the loop to raymine. With the originals installed they can go.
"""

import argparse

import torch

import raymine.compat.nerfacc
import raymine.compat.tinycudann
from raymine.experiment import open_data
from raymine.pixels import draw_uniform
from raymine.scenes import load_scene

raymine.compat.nerfacc.install()
raymine.compat.tinycudann.install()

import nerfacc  # noqa: E402
import tinycudann as tcnn  # noqa: E402

GRID = {"otype": "HashGrid", "n_levels": 8, "n_features_per_level": 4, "log2_hashmap_size": 15, "per_level_scale": 1.5}
MLP = {"otype": "FullyFusedMLP", "activation": "ReLU", "n_neurons": 64, "n_hidden_layers": 1}
BOX, STEP = [-1.5, -1.5, -1.5, 1.5, 1.5, 1.5], 0.015


class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.base = tcnn.NetworkWithInputEncoding(3, 16, GRID, MLP)
        self.view = tcnn.Encoding(3, {"otype": "SphericalHarmonics", "degree": 4})
        self.head = tcnn.Network(self.view.n_output_dims + 16, 3, {**MLP, "output_activation": "Sigmoid"})

    def density(self, points):
        features = self.base(points / 3 + 0.5).float()
        return torch.exp(features[:, 0] - 1), features

    def forward(self, points, directions):
        density, features = self.density(points)
        return self.head(torch.cat((self.view((directions + 1) / 2), features), -1)).float(), density


def render(origins, directions):
    def rgb_sigma_fn(starts, ends, rays):
        return field(origins[rays] + directions[rays] * (starts + ends)[:, None] / 2, directions[rays])

    rays, starts, ends = estimator.sampling(origins, directions, render_step_size=STEP)
    return nerfacc.rendering(starts, ends, rays, len(origins), rgb_sigma_fn, render_bkgd=torch.ones_like(origins))[0]


parser = argparse.ArgumentParser(description="A program for nerfacc and tiny-cuda-nn, without either.")
parser.add_argument("--steps", type=int, default=1000)
steps = parser.parse_args().steps
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
scene = load_scene("builtin", downscale=4)
with open_data(scene, range(len(scene.frames)), torch.device("cpu"), None) as data:
    image, y, x = draw_uniform(data.train.sizes, 1 << 17, seed=0, step=0)
    rays, (rgba, _) = data.train.rig.rays_for_pixels(image, x, y), data.bank.gather(image, y, x)
over_white = rgba[:, :3] * rgba[:, 3:] + 1 - rgba[:, 3:]
pixels = torch.cat((rays.origins, rays.directions, over_white), 1).to(device)
held_out = torch.isin(image, torch.tensor(scene.of_split("test"))).to(device)
seen, unseen = pixels[~held_out], pixels[held_out].split(3, dim=1)
torch.manual_seed(0)
field, estimator = Field().to(device), nerfacc.OccGridEstimator(BOX, resolution=64).to(device)
optimiser = torch.optim.Adam(field.parameters(), lr=1e-2, eps=1e-15)
for step in range(steps):
    estimator.update_every_n_steps(step, lambda points: field.density(points)[0] * STEP)
    origins, directions, target = seen[torch.randint(len(seen), (256,), device=device)].split(3, dim=1)
    loss = torch.nn.functional.smooth_l1_loss(render(origins, directions), target, beta=0.1)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if step % max(1, steps // 5) == 0:
        print(f"step {step:5d}   loss {loss.item():.5f}")
with torch.no_grad():
    error = (render(unseen[0], unseen[1]) - unseen[2]).square().mean()
print(f"PSNR {-10 * error.log10():.2f} dB on views that were not trained on")

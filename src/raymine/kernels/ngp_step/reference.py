"""The hash-grid field along rays in plain torch: the definition.

    e = encode(x)    g = relu(e W1) W2    density' = g_0    colour' = relu(relu([g, h] V1) V2) ...

h is the encoded direction; primes mark pre-activations. A sample is visible if the transmittance before it is at least
`stop` and its own opacity is at least `faint`. Other samples get density HIDDEN and colour 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.kernels.activations import CAP, HIDDEN
from raymine.kernels.composite.reference import composite, transmittance
from raymine.kernels.hash_grid import reference as hash_grid
from raymine.kernels.hash_grid.spec import GridSpec
from raymine.kernels.ngp_step.inputs import Box, harmonics, to_unit_cube
from raymine.kernels.packed import Samples


def infer(
    table: Tensor,
    spec: GridSpec,
    density: tuple[Tensor, ...],
    colour: tuple[Tensor, ...],
    box: Box,
    origins: Tensor,
    directions: Tensor,
    samples: Samples,
    stop: float,
    faint: float,
    with_colour: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """-> colour [B, 3], density [B] (pre-activations), features [B, L * F] if `keep`, else [0, L * F]."""
    ray_id = torch.arange(samples.n_rays, device=origins.device)
    ray_id = torch.repeat_interleave(ray_id, samples.count, output_size=len(samples))
    middle = (samples.t_start + samples.t_end) * 0.5
    positions = origins[ray_id] + directions[ray_id] * middle[:, None]
    features = hash_grid.encode(to_unit_cube(positions, box).clamp(0, 1), table, spec)
    geometry, outputs = forward(features, density, colour, harmonics(directions)[ray_id])
    length = samples.t_end - samples.t_start
    active = torch.exp((geometry[:, 0] - 1).clamp_max(CAP))
    # Comparisons with NaN are False, so NaN counts as visible and reaches the loss, where it is detected.
    hidden = (transmittance(active, length, ray_id, samples.first) < stop) | (-torch.expm1(-active * length) < faint)
    raw = torch.where(hidden, torch.full_like(active, HIDDEN), geometry[:, 0])
    kept = features if keep else features[:0]
    return torch.where(hidden[:, None], 0.0, outputs) if with_colour else torch.zeros_like(positions), raw, kept


def render(
    table: Tensor,
    spec: GridSpec,
    density: tuple[Tensor, ...],
    colour: tuple[Tensor, ...],
    box: Box,
    origins: Tensor,
    directions: Tensor,
    samples: Samples,
    background: Tensor,
    stop: float,
    faint: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """-> colour [R, 3] over the background [3], opacity [R], depth [R]: `composite` of what `infer` gives."""
    network = (table, spec, density, colour, box)
    raw, density_raw, _ = infer(*network, origins, directions, samples, stop, faint, True, False)
    active = torch.exp((density_raw - 1).clamp_max(CAP))
    behind = background.expand(samples.n_rays, 3)
    pack = samples.first, samples.count
    out = composite(active, raw.sigmoid(), samples.t_start, samples.t_end, *pack, behind, stop)
    return out[0], out[1], out[2]


def forward(
    features: Tensor, density: tuple[Tensor, ...], colour: tuple[Tensor, ...], encoded: Tensor
) -> tuple[Tensor, Tensor]:
    """Encodings [n, L * F], encoded directions [n, S] -> g [n, geometry], colour' [n, 3]. Differentiable."""
    geometry = (features @ density[0]).relu() @ density[1]
    hidden = torch.cat((geometry, encoded), 1)
    for weight in colour[:-1]:
        hidden = (hidden @ weight).relu()
    return geometry, hidden @ colour[-1]


def train(
    table: Tensor,
    spec: GridSpec,
    density: tuple[Tensor, ...],
    colour: tuple[Tensor, ...],
    box: Box,
    positions: Tensor,
    directions: Tensor,
    colour_grad: Tensor,
    density_grad: Tensor,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Rows [m] of the table with a gradient, their gradients [m, F], and the gradient of every layer, by autograd."""
    leaves = [part.detach().requires_grad_() for part in (table, *density, *colour)]
    with torch.enable_grad():
        features = hash_grid.encode(to_unit_cube(positions, box).clamp(0, 1), leaves[0], spec)
        geometry, outputs = forward(features, tuple(leaves[1:3]), tuple(leaves[3:]), harmonics(directions))
        to_table, *to_layers = torch.autograd.grad((outputs, geometry[:, 0]), leaves, (colour_grad, density_grad))
    rows = to_table.any(1).nonzero()[:, 0]
    return rows, to_table[rows], tuple(to_layers)

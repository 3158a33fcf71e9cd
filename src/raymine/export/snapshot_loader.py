"""Load a raymine snapshot and evaluate it. This file needs torch and safetensors alone; copy it wherever you like.

    field = load("model.safetensors")
    colour, density = field(positions, directions)          # before activation
    rgb, sigma = field.activated(positions, directions)     # colour in 0..1, density per unit

Positions are in raymine's normalised world. `field.to_normalised` takes points of the scene's own world there.

The field: a position is scaled to a cube, and contracted if the scene is unbounded. On every level of a grid the
features of the 8 vertices around it are interpolated. A small network makes a density and a few more numbers of them,
and a second network makes a colour of these numbers and of spherical harmonics of the direction. Layers have no bias.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

FORMAT = "raymine-field-1"

_PRIMES = (1, 2654435761, 805459861)


class Field(torch.nn.Module):
    """A hash-grid field: positions and unit directions [n, 3] -> pre-activations of colour [n, 3] and density [n]."""

    def __init__(self, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
        super().__init__()
        if description.get("format") != FORMAT:
            raise ValueError(f"the file is not a snapshot of the format {FORMAT}")
        self.description = description
        if "scales" in tensors:
            # The table is 16-bit integers, with a scale for each 4 rows.
            factors = tensors["scales"].repeat_interleave(4)[:, None]
            tensors = {**tensors, "table": tensors["table"].float() * factors}
            del tensors["scales"]
        for name, value in tensors.items():
            wide = value.float() if value.is_floating_point() else value
            self.register_buffer(name.replace(".", "_"), wide)
        self.levels = description["levels"]
        self.density_count = description["density_layers"]
        self.colour_count = description["colour_layers"]

    def unit_cube(self, positions: Tensor) -> Tensor:
        """World positions [n, 3] -> positions in 0..1; an unbounded scene is contracted into the cube."""
        low, high = (torch.tensor(self.description[side]).to(positions) for side in ("low", "high"))
        if not self.description["unbounded"]:
            return (positions - low) / (high - low)
        centred = (positions - (low + high) * 0.5) * (2.0 / (high - low))
        norm = centred.abs().amax(-1, keepdim=True).clamp_min(1.0)
        return centred * ((2.0 - 1.0 / norm) / norm) * 0.25 + 0.5

    def encode(self, unit: Tensor) -> Tensor:
        """Positions in 0..1 [n, 3] -> features [n, levels * features]."""
        table = self.get_buffer("table")
        found = []
        for level in self.levels:
            at = unit * level["scale"] + 0.5
            cell = at.floor()
            fraction, cell = at - cell, cell.long()
            value = torch.zeros(len(unit), table.shape[1], device=unit.device)
            for corner in range(8):
                bits = (corner & 1, corner >> 1 & 1, corner >> 2)
                weight = torch.ones(len(unit), device=unit.device)
                for axis, bit in enumerate(bits):
                    weight = weight * (fraction[:, axis] if bit else 1 - fraction[:, axis])
                x, y, z = (cell[:, axis] + bit for axis, bit in enumerate(bits))
                if level["dense"]:
                    row = x + level["resolution"] * (y + level["resolution"] * z)
                else:
                    mask = 0xFFFFFFFF
                    row = (x * _PRIMES[0] & mask) ^ (y * _PRIMES[1] & mask) ^ (z * _PRIMES[2] & mask)
                value = value + weight[:, None] * table[row % level["entries"] + level["offset"]]
            found.append(value)
        return torch.cat(found, -1)

    def geometry(self, positions: Tensor) -> Tensor:
        """Positions [n, 3] -> outputs of the density network [n, k]; column 0 is the density pre-activation."""
        hidden = self.encode(self.unit_cube(positions))
        for i in range(self.density_count):
            hidden = hidden @ self.get_buffer(f"density_{i}")
            hidden = hidden.relu() if i + 1 < self.density_count else hidden
        return hidden

    def forward(self, positions: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.geometry(positions)
        density = hidden[:, 0]
        hidden = torch.cat((hidden, spherical_harmonics(directions, self.description["bands"])), -1)
        for i in range(self.colour_count):
            hidden = hidden @ self.get_buffer(f"colour_{i}")
            hidden = hidden.relu() if i + 1 < self.colour_count else hidden
        return hidden, density

    def activated(self, positions: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Colour [n, 3] in 0..1 and density [n] per normalised unit; 0 where the occupancy grid is empty."""
        colour, density = self(positions, directions)
        value = torch.exp((density - self.description["shift"]).clamp_max(self.description["cap"]))
        return colour.sigmoid(), torch.where(self.occupied(positions), value, 0.0)

    def occupied(self, positions: Tensor) -> Tensor:
        """[n] bool: whether positions lie in cells of the occupancy grid in which the field was trained."""
        bits, grid = self._buffers.get("occupancy"), self.description.get("occupancy")
        if bits is None or grid is None:
            return torch.ones(len(positions), dtype=torch.bool, device=positions.device)
        low, high = (torch.tensor(self.description[side]).to(positions) for side in ("low", "high"))
        unit = (positions - (low + high) / 2) / ((high - low) / 2)
        level = unit.abs().amax(-1).clamp_min(1e-12).log2().ceil().clamp_min(0).long()
        inside, level = level < grid["levels"], level.clamp_max(grid["levels"] - 1)
        res = grid["resolution"]
        cell = ((unit / 2.0 ** level[:, None] + 1) * (res / 2)).long().clamp(0, res - 1)
        row = ((level * res + cell[:, 0]) * res + cell[:, 1]) * res + cell[:, 2]
        return inside & ((bits[row // 8].long() >> row % 8) & 1).bool()

    def to_normalised(self, points: Tensor) -> Tensor:
        """Points [n, 3] of the scene's own world -> the normalised world."""
        matrix = torch.tensor(self.description["normalisation"]).to(points)
        return points @ matrix[:3, :3].T + matrix[:3, 3]


def spherical_harmonics(directions: Tensor, bands: int) -> Tensor:
    """Real spherical harmonics of unit directions [n, 3] -> [n, bands^2]."""
    x, y, z = directions.unbind(-1)
    columns = [z] * bands**2
    cosine, sine, straight = torch.ones_like(x), torch.zeros_like(x), 1.0
    for m in range(bands):
        below, here = torch.zeros_like(z), torch.full_like(z, straight)
        for band in range(m, bands):
            norm = math.sqrt((2 * band + 1) / (4 * math.pi) * math.factorial(band - m) / math.factorial(band + m))
            norm *= math.sqrt(2.0) if m else 1.0
            columns[band * band + band + m] = norm * here * cosine
            if m:
                columns[band * band + band - m] = norm * here * sine
            below, here = here, ((2 * band + 1) * z * here - (band + m) * below) / (band - m + 1)
        cosine, sine = x * cosine - y * sine, x * sine + y * cosine
        straight *= -(2 * m + 1)
    return torch.stack(columns, -1)


def load(path: str, device: str = "cpu") -> Field:
    """Open a snapshot. `ValueError` if the file is not one."""
    with safe_open(path, framework="pt", device=device) as file:
        description = json.loads((file.metadata() or {}).get("raymine", "{}"))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    return Field(tensors, description).to(device)

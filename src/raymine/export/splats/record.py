"""Gaussian splats as tensors, and as the PLY layout that splat viewers read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.export.model import Placement
from raymine.export.ply import read_ply, write_ply
from raymine.kernels.harmonics.op import harmonics


@dataclass(frozen=True, eq=False)
class Splats:
    """n Gaussian splats, float32 on the CPU.

    means [n, 3]; log_scales [n, 3]: logarithms of the standard deviations; quaternions [n, 4] as w, x, y, z, of any
    length; logits [n]: opacity before the sigmoid; harmonics [n, K, 3]: colour minus 0.5 as spherical harmonics of the
    viewing direction, of K = 1, 4, 9 or 16 terms (degree 0 .. 3).
    """

    means: Tensor
    log_scales: Tensor
    quaternions: Tensor
    logits: Tensor
    harmonics: Tensor

    def __len__(self) -> int:
        return self.means.shape[0]

    @property
    def degree(self) -> int:
        """The degree of the harmonics, 0 .. 3."""
        return math.isqrt(self.harmonics.shape[1]) - 1

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.means, self.log_scales, self.quaternions, self.logits, self.harmonics

    def rows(self, index: Tensor) -> Splats:
        """The splats at `index` [m]. Differentiable."""
        return Splats(*(value[index] for value in self.tensors()))

    def placed(self, placement: Placement) -> Splats:
        """The same splats in another world: moved, scaled and turned, colours included."""
        turn = torch.from_numpy(placement.rotation).float()
        return Splats(
            torch.from_numpy(placement.points(self.means.double().numpy())).float(),
            self.log_scales + math.log(placement.scale),
            quaternion_of(turn.double() @ rotation_of(self.quaternions.double())).float(),
            self.logits,
            _turned(self.harmonics, turn),
        )


def rotation_of(quaternions: Tensor) -> Tensor:
    """Quaternions [n, 4] (w, x, y, z), of any length -> rotations [n, 3, 3]. Differentiable."""
    w, x, y, z = torch.nn.functional.normalize(quaternions, dim=-1).unbind(-1)
    rows = (
        torch.stack((1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)), -1),
        torch.stack((2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)), -1),
        torch.stack((2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)), -1),
    )
    return torch.stack(rows, -2)


def quaternion_of(rotations: Tensor) -> Tensor:
    """Rotations [n, 3, 3] -> unit quaternions [n, 4] (w, x, y, z), w >= 0.

    q q^T is a linear function of the rotation. Its column with the largest diagonal entry is q times a number that is
    not near 0.
    """
    r = rotations
    trace = r[:, 0, 0] + r[:, 1, 1] + r[:, 2, 2]
    outer = r.new_empty(len(r), 4, 4)
    outer[:, 0, 0] = 1 + trace
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        outer[:, i + 1, i + 1] = 1 + 2 * r[:, i, i] - trace
        outer[:, 0, i + 1] = outer[:, i + 1, 0] = r[:, k, j] - r[:, j, k]
        outer[:, j + 1, k + 1] = outer[:, k + 1, j + 1] = r[:, j, k] + r[:, k, j]
    best = outer.diagonal(dim1=1, dim2=2).argmax(1)
    found = torch.nn.functional.normalize(outer[torch.arange(len(r)), best], dim=-1)
    return torch.where(found[:, :1] < 0, -found, found)


def _turned(coefficients: Tensor, turn: Tensor) -> Tensor:
    """Harmonics [n, K, 3] of a world that is turned by `turn` [3, 3].

    What was seen along d is seen along turn d. Each band maps to itself, linearly: solved on fixed directions.
    """
    bands = math.isqrt(coefficients.shape[1])
    drawn = torch.randn(64, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    directions = torch.nn.functional.normalize(drawn, dim=-1)
    old, new = harmonics(directions, bands), harmonics((directions @ turn.double().T).contiguous(), bands)
    matrix = torch.linalg.lstsq(new, old).solution.to(coefficients)
    return torch.einsum("kl,nlc->nkc", matrix, coefficients)


def write_splats(path: Path, splats: Splats) -> None:
    """Write the PLY layout of 3D Gaussian splatting: x y z, nx ny nz (zeros), f_dc, f_rest, opacity, scale, rot.

    f_rest has the higher harmonics of red, then of green, then of blue.
    """
    names = ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2"]
    rest = splats.harmonics[:, 1:].transpose(1, 2).reshape(len(splats), -1)
    names += [f"f_rest_{i}" for i in range(rest.shape[1])]
    names += ["opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]
    turned = torch.nn.functional.normalize(splats.quaternions, dim=-1)
    parts = (splats.means, torch.zeros_like(splats.means), splats.harmonics[:, 0], rest, splats.logits[:, None])
    table = torch.cat((*parts, splats.log_scales, turned), 1).numpy().astype("<f4")
    write_ply(path, table.view([(name, "<f4") for name in names])[:, 0], ("Gaussian splats, written by raymine",))


def read_splats(path: Path) -> Splats:
    """Read a file that `write_splats` or a trainer of Gaussian splats wrote."""
    vertices = read_ply(path)
    names = vertices.dtype.names or ()
    needed = ("x", "y", "z", "f_dc_0", "opacity", "scale_2", "rot_3")
    missing = [name for name in needed if name not in names]
    if missing:
        raise ConfigError(f"{path} holds no Gaussian splats: it has no {', '.join(missing)}.")

    def columns(*wanted: str) -> Tensor:
        return torch.from_numpy(np.stack([vertices[name].astype(np.float32) for name in wanted], -1))

    count = sum(name.startswith("f_rest_") for name in names) // 3
    colour = columns("f_dc_0", "f_dc_1", "f_dc_2")[:, None]
    if count:
        rest = columns(*(f"f_rest_{i}" for i in range(3 * count))).reshape(-1, 3, count).transpose(1, 2)
        colour = torch.cat((colour, rest), 1)
    scales, turns = columns("scale_0", "scale_1", "scale_2"), columns("rot_0", "rot_1", "rot_2", "rot_3")
    return Splats(columns("x", "y", "z"), scales, turns, columns("opacity")[:, 0], colour)

"""Random hash-grid networks of many shapes, and rays with samples, for tests of `ngp_step`."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.kernels.hash_grid.op import GridSpec
from raymine.kernels.ngp_step.op import WIDTH, Box, Network
from raymine.kernels.packed import Samples, pack_counts

SPEC = GridSpec(levels=3, features=2, log2_entries=8, base=4, finest=32)


def network(
    *, layers: int = 2, width: int = 16, geometry: int = 16, spec: GridSpec = SPEC, unbounded: bool = False
) -> Network:
    """Random parameters that give densities from empty to opaque."""
    hidden = [(geometry + WIDTH, width)] + [(width, width)] * (layers - 2)
    shapes = [*hidden, (width, 3)] if layers > 1 else [(geometry + WIDTH, 3)]
    box = Box(torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([1.0, 1.5, 1.0]), unbounded)
    density = (torch.randn(spec.width, width), torch.randn(width, geometry))
    table = torch.randn(spec.total_entries, spec.features)
    return Network(table, spec, density, tuple(torch.randn(shape) * 0.3 for shape in shapes), box)


def rays(n: int) -> tuple[Tensor, Tensor, Samples]:
    """Rays through the box with 0 to 30 samples; about a third have none."""
    origins = torch.randn(n, 3) * 2
    directions = torch.nn.functional.normalize(torch.randn(n, 3) * 0.3 - origins, dim=-1)
    count = torch.randint(0, 30, (n,))
    count[torch.rand(n) < 0.3] = 0
    pack = pack_counts(count)
    place = torch.arange(int(count.sum())) - torch.repeat_interleave(pack.first, count)
    t_start = place * 0.05 + 0.5
    return origins, directions, Samples.from_pack(t_start, t_start + 0.05, pack)


SHAPES = [
    {},
    {"layers": 1},
    {"layers": 4, "width": 24},
    {"geometry": 5, "width": 13},
    {"spec": GridSpec(levels=5, features=4, log2_entries=6, base=2, finest=64)},
    {"unbounded": True},
]

"""The hash grid encoding in plain torch, differentiable by autograd: the definition (symbols in `spec`)."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.kernels.hash_grid.spec import PRIMES, GridSpec


def corner_index(cell: Tensor, level: int, spec: GridSpec) -> Tensor:
    """[n, 3] int64 vertices of a level -> [n] int64 rows of the table."""
    entries, res = int(spec.entries[level]), int(spec.resolutions[level])
    x, y, z = cell.unbind(-1)
    if spec.dense[level]:
        index = x + res * (y + res * z)
    else:
        mask = 0xFFFFFFFF
        index = (x * PRIMES[0] & mask) ^ (y * PRIMES[1] & mask) ^ (z * PRIMES[2] & mask)
    return index % entries + int(spec.offsets[level])


def encode(positions: Tensor, table: Tensor, spec: GridSpec) -> Tensor:
    """positions [n, 3] in 0..1, table [entries, F] -> [n, L * F]: trilinear interpolation on every level."""
    levels = []
    for level in range(spec.levels):
        at = positions * float(spec.scales[level]) + 0.5
        cell = at.detach().floor()
        fraction = at - cell
        value = torch.zeros(positions.shape[0], spec.features, dtype=table.dtype, device=table.device)
        for corner in range(8):
            bits = torch.tensor([corner & 1, corner >> 1 & 1, corner >> 2], device=positions.device)
            weight = torch.where(bits.bool(), fraction, 1 - fraction).prod(-1, keepdim=True)
            value = value + weight.to(table.dtype) * table[corner_index(cell.long() + bits, level, spec)]
        levels.append(value)
    return torch.cat(levels, -1)

"""Trilinear interpolation in a sparse grid, in plain torch, differentiable by autograd: the definition.

The grid has S^3 vertices over the unit cube. A point x in 0..1 has the grid coordinate x (S - 1). Vertex (i, j, k) has
the place (i S + j) S + k in `index`, which holds its row in the table, or -1 where the grid is empty. A vertex without
a row, or with one that the table does not have, has the value `missing` in every column, and no gradient.

S is a tensor, so that it can change between two runs of a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor


def corner_rows(cell: Tensor, corner: int, index: Tensor, side: Tensor) -> Tensor:
    """Cells [n, 3] int64 -> rows [n] int64 of one of their corners, -1 where there is none; bit 0 of `corner` is x."""
    i, j, k = cell.unbind(-1)
    i, j, k = i + (corner & 1), j + (corner >> 1 & 1), k + (corner >> 2)
    return index.index_select(0, (i * side + j) * side + k).long()


def interpolate(positions: Tensor, index: Tensor, side: Tensor, table: Tensor, missing: float) -> Tensor:
    """positions [n, 3] in 0..1, index [at least S^3] int32, side [1] int32, table [rows, C] -> [n, C]."""
    side = side[0].long()
    at = positions * (side - 1).to(positions.dtype)
    cell = torch.minimum(at.detach().floor(), (side - 2).to(positions.dtype))
    fraction, cell = at - cell, cell.long()
    out = torch.zeros(len(positions), table.shape[1], dtype=table.dtype, device=table.device)
    for corner in range(8):
        rows = corner_rows(cell, corner, index, side)
        parts = [fraction[:, axis] if corner >> axis & 1 else 1 - fraction[:, axis] for axis in range(3)]
        there = (rows >= 0) & (rows < len(table))
        value = torch.where(there[:, None], table.index_select(0, torch.where(there, rows, 0)), missing)
        out = out + (parts[0] * parts[1] * parts[2])[:, None] * value
    return out

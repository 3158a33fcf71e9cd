"""Features of points from planes, in plain torch, differentiable by autograd: the definition.

A point has the coordinates x_0, x_1, x_2 in space and, in a scene that moves, x_3 = time, all in 0..1. Plane i lies
across axis i: it has A x A vertices over the two other axes of space. The second factor i has A vertices along axis i
and, if it is a plane over time, B vertices along time; B = 1 is a line. P_i and S_i are the bilinear interpolations
at a point, both [C].

    planes (K-Planes)                     P_0 P_1 P_2                    [C]
    planes with time (K-Planes)           P_0 P_1 P_2 S_0 S_1 S_2        [C]
    vector-matrix (TensoRF)               (P_0 S_0, P_1 S_1, P_2 S_2)    [3 C]

The features of a vertex lie next to each other in memory, so a corner is one read.
"""

from __future__ import annotations

import torch
from torch import Tensor

AXES = ((1, 2), (0, 2), (0, 1))
"""The two axes of each plane."""


def interpolate(grid: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """grid [A, B, C], coordinates u and v [n] in 0..1 -> [n, C]. Differentiable in all three."""
    rows, columns, features = grid.shape
    flat = grid.reshape(rows * columns, features)
    at, cell, after = _along(u, rows)
    right, column, beside = _along(v, columns)
    low = torch.lerp(_pick(flat, cell * columns + column), _pick(flat, cell * columns + beside), right)
    high = torch.lerp(_pick(flat, after * columns + column), _pick(flat, after * columns + beside), right)
    return torch.lerp(low, high, at)


def _along(x: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """x [n] in 0..1 on an axis of `size` vertices: the fraction [n, 1] in its cell, and the vertices [n] around it."""
    at = x * (size - 1)
    cell = at.detach().floor().clamp(max=max(0, size - 2))
    first = cell.long()
    return (at - cell)[:, None], first, (first + 1).clamp(max=size - 1)


def _pick(flat: Tensor, index: Tensor) -> Tensor:
    return flat.index_select(0, index)


def features(positions: Tensor, planes: Tensor, second: Tensor | None, separate: bool) -> Tensor:
    """positions [n, 3 or 4], planes [3, A, A, C], second [3, A, B, C] -> [n, C], or [n, 3 C] if `separate`."""
    found = [interpolate(planes[i], positions[:, a], positions[:, b]) for i, (a, b) in enumerate(AXES)]
    if second is None:
        return found[0] * found[1] * found[2]
    time = positions[:, 3] if positions.shape[1] > 3 else torch.zeros_like(positions[:, 0])
    others = [interpolate(second[i], positions[:, i], time) for i in range(3)]
    if separate:
        return torch.cat([plane * other for plane, other in zip(found, others, strict=True)], -1)
    return found[0] * found[1] * found[2] * others[0] * others[1] * others[2]

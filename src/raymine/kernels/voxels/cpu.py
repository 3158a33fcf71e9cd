"""Interpolation in a sparse grid with Numba.

Forward: tasks are ranges of points. Backward to the table: one task lists the rows that the points touch, then tasks
are shards of these rows, each of which adds up its points in index order for any number of threads.
"""

from __future__ import annotations

from functools import cache

import numba
import numpy as np
import torch
from torch import Tensor

from raymine.kernels._numba import Kernel, array, device_function, kernel, tasks


@device_function
def _along(x, side):
    """The cell of x in 0..1 on an axis of `side` vertices, and the fraction within."""
    at = x * np.float32(side - 1)
    cell = min(int(at), side - 2)
    return cell, at - np.float32(cell)


@device_function
def _row(index, place, count):
    """The row of a vertex, -1 where there is none or where the table has no such row."""
    row = index[place]
    return row if row < count else -1


@device_function
def _rows(points, i, index, side, count):
    """Rows of the eight corners around point i, -1 where there is none, and the three fractions; x is bit 0.

    count: rows of the table.
    """
    a, fx = _along(points[i, 0], side)
    b, fy = _along(points[i, 1], side)
    c, fz = _along(points[i, 2], side)
    p = (a * side + b) * side + c
    q, r, s = p + side * side, p + side, p + side * side + side
    rows = (
        _row(index, p, count),
        _row(index, q, count),
        _row(index, r, count),
        _row(index, s, count),
        _row(index, p + 1, count),
        _row(index, q + 1, count),
        _row(index, r + 1, count),
        _row(index, s + 1, count),
    )
    return rows, fx, fy, fz


@device_function
def _weights(fx, fy, fz):
    one = np.float32(1.0)
    gx, gy, gz = one - fx, one - fy, one - fz
    a, b, c, d = gy * gz, fy * gz, gy * fz, fy * fz
    return gx * a, fx * a, gx * b, fx * b, gx * c, fx * c, gx * d, fx * d


@cache
def _forward(features: int) -> Kernel:
    @kernel
    def forward(points, index, side, table, missing, out, n_tasks):
        n = points.shape[0]
        for task in numba.prange(n_tasks):
            for i in range(task * n // n_tasks, (task + 1) * n // n_tasks):
                rows, fx, fy, fz = _rows(points, i, index, side, table.shape[0])
                weights = _weights(fx, fy, fz)
                absent = np.float32(0.0)
                for corner in range(8):
                    if rows[corner] < 0:
                        absent += weights[corner] * missing
                for f in range(features):
                    out[i, f] = absent
                for corner in range(8):
                    if rows[corner] >= 0:
                        row, weight = np.uint32(rows[corner]), weights[corner]
                        for f in range(features):
                            out[i, f] += weight * table[row, f]

    return forward


@device_function
def _list_rows(points, live, index, side, slots, listed):
    """Number the rows that live points touch, in the order of their first use: `slots` from 1, `listed` rows. Their
    number is returned."""
    found = 0
    for i in range(points.shape[0]):
        if live[i]:
            rows, _, _, _ = _rows(points, i, index, side, slots.shape[0])
            for corner in range(8):
                row = rows[corner]
                if row >= 0 and slots[row] == 0:
                    listed[found] = row
                    found += 1
                    slots[row] = found
    return found


@cache
def _scatter(features: int) -> Kernel:
    @kernel
    def scatter(points, live, index, side, slots, grad, out, shards):
        """Adds the gradients of points to those of the listed rows, `out`."""
        for shard in numba.prange(shards):
            for i in range(points.shape[0]):
                if live[i]:
                    rows, fx, fy, fz = _rows(points, i, index, side, slots.shape[0])
                    weights = _weights(fx, fy, fz)
                    for corner in range(8):
                        if rows[corner] >= 0:
                            place = slots[rows[corner]] - 1
                            if shards == 1 or place % shards == shard:
                                slot, weight = np.uint32(place), weights[corner]
                                for f in range(features):
                                    out[slot, f] += weight * grad[i, f]

    return scatter


@kernel
def _slopes(points, index, side, table, missing, grad, out, n_tasks):
    n, one = points.shape[0], np.float32(1.0)
    for task in numba.prange(n_tasks):
        for i in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            rows, fx, fy, fz = _rows(points, i, index, side, table.shape[0])
            dx = dy = dz = np.float32(0.0)
            for corner in range(8):
                dot = np.float32(0.0)
                for f in range(grad.shape[1]):
                    value = missing if rows[corner] < 0 else table[rows[corner], f]
                    dot += value * grad[i, f]
                bx, by, bz = corner & 1, corner >> 1 & 1, corner >> 2
                wx, wy, wz = fx if bx else one - fx, fy if by else one - fy, fz if bz else one - fz
                dx += dot * wy * wz if bx else -dot * wy * wz
                dy += dot * wx * wz if by else -dot * wx * wz
                dz += dot * wx * wy if bz else -dot * wx * wy
            cells = np.float32(side - 1)
            out[i, 0], out[i, 1], out[i, 2] = dx * cells, dy * cells, dz * cells


def _inside(positions: Tensor) -> np.ndarray:
    """Points, clamped to 0..1; NaN becomes 0."""
    return array(positions.detach().nan_to_num(0.0, 1.0, 0.0).clamp(0.0, 1.0))


def interpolate(positions: Tensor, index: Tensor, side: Tensor, table: Tensor, missing: float) -> Tensor:
    """As `reference.interpolate`, without a graph; coordinates are clamped, and NaN gives NaN."""
    n = positions.shape[0]
    out = np.empty((n, table.shape[1]), np.float32)
    empty, count = np.float32(missing), int(side[0])
    _forward(table.shape[1])(_inside(positions), array(index), count, array(table), empty, out, tasks(n))
    found, lost = torch.from_numpy(out), positions.isnan().any(-1)
    return found.masked_fill_(lost[:, None], torch.nan) if bool(lost.any()) else found


def table_gradient(positions: Tensor, index: Tensor, side: Tensor, table: Tensor, grad: Tensor) -> Tensor:
    """The gradient of the table as a sparse tensor: touched rows, ascending, and theirs."""
    points, places, count = _inside(positions), array(index), int(side[0])
    live, given = array(~positions.isnan().any(-1)), array(grad)
    slots = np.zeros(table.shape[0], np.int32)
    listed = np.empty(min(8 * len(points), table.shape[0]), np.int64)
    found = _list_rows(points, live, places, count, slots, listed)
    rows = np.sort(listed[:found])
    slots[rows] = np.arange(1, found + 1, dtype=np.int32)
    values = np.zeros((found, table.shape[1]), np.float32)
    _scatter(table.shape[1])(points, live, places, count, slots, given, values, numba.get_num_threads())
    if not found:
        # Autograd adds another gradient to an empty one in place, which the memory of an array does not allow.
        return torch.zeros_like(table, layout=torch.sparse_coo)
    with torch.sparse.check_sparse_tensor_invariants(False):
        return torch.sparse_coo_tensor(
            torch.from_numpy(rows)[None], torch.from_numpy(values), table.shape, is_coalesced=True
        )


def position_gradient(
    positions: Tensor, index: Tensor, side: Tensor, table: Tensor, missing: float, grad: Tensor
) -> Tensor:
    """The gradient of the positions [n, 3]; 0 where a coordinate was clamped, and for a point with NaN."""
    n = positions.shape[0]
    out = np.empty((n, 3), np.float32)
    grid = array(index), int(side[0]), array(table), np.float32(missing)
    _slopes(_inside(positions), *grid, array(grad), out, tasks(n))
    kept = (positions >= 0) & (positions <= 1) & ~positions.isnan().any(-1, keepdim=True)
    return torch.where(kept, torch.from_numpy(out), 0.0)

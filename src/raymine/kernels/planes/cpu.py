"""Features from planes with Numba.

Forward: tasks are ranges of points. Backward: first the gradient of every factor at every point, by ranges of points;
then tasks are factors, or shards of their vertices if there are more threads than factors. Each task owns the vertices
that it adds to, and each vertex adds up its points in index order for any number of threads.

Planes and second factors are passed as tables [vertices, C], because a slice of an array counts references, and
counting them takes longer than interpolating.
"""

from __future__ import annotations

from functools import cache

import numba
import numpy as np
import torch
from torch import Tensor

from raymine.kernels._numba import Kernel, array, device_function, inlined_function, kernel, tasks


@device_function
def _along(x, size):
    """The cell of x in 0..1 on an axis of `size` vertices, the vertex after it, and the fraction within."""
    at = x * np.float32(size - 1)
    cell = min(int(at), max(0, size - 2))
    return cell, min(cell + 1, size - 1), at - np.float32(cell)


@device_function
def _place(x, y, z, t, j, width, height):
    """Rows of the four vertices around a point in the table of factor j (0..2: planes, 3..5: second), and fractions."""
    u, v, columns = y, z, width
    if j == 1:
        u, v = x, z
    elif j == 2:
        u, v = x, y
    elif j > 2:
        u = x if j == 3 else (y if j == 4 else z)
        v, columns = t, height
    a, b, fa = _along(u, width)
    c, d, fb = _along(v, columns)
    first = (j % 3) * width * columns
    # Unsigned, because Numba gives negative indices a meaning of their own, and the check for them prevents SIMD code.
    low, high = first + a * columns, first + b * columns
    return np.uint32(low + c), np.uint32(low + d), np.uint32(high + c), np.uint32(high + d), fa, fb


@inlined_function
def _blend(table, r00, r01, r10, r11, fa, fb, values, task, j, features):
    """values[task, j, :] = the bilinear interpolation of four rows of the table."""
    one = np.float32(1.0)
    w00, w01, w10, w11 = (one - fa) * (one - fb), (one - fa) * fb, fa * (one - fb), fa * fb
    for f in range(features):
        values[task, j, f] = w00 * table[r00, f] + w01 * table[r01, f] + w10 * table[r10, f] + w11 * table[r11, f]


@inlined_function
def _slopes(table, r00, r01, r10, r11, fa, fb, parts, i, j, features):
    """Gradients along both axes of factor j, per cell, given that of its value, parts[i, j, :]."""
    da = db = np.float32(0.0)
    for f in range(features):
        c00, c01, c10, c11 = table[r00, f], table[r01, f], table[r10, f], table[r11, f]
        low, high = c00 + (c01 - c00) * fb, c10 + (c11 - c10) * fb
        da += parts[i, j, f] * (high - low)
        db += parts[i, j, f] * ((c01 - c00) + ((c11 - c10) - (c01 - c00)) * fa)
    return da, db


@cache
def _forward(features: int, factors: int, separate: bool) -> Kernel:
    @kernel
    def forward(points, planes, second, width, height, out, values, n_tasks):
        n = points.shape[0]
        for task in numba.prange(n_tasks):
            for i in range(task * n // n_tasks, (task + 1) * n // n_tasks):
                x, y, z, t = points[i, 0], points[i, 1], points[i, 2], points[i, 3]
                for j in range(3):
                    r00, r01, r10, r11, fa, fb = _place(x, y, z, t, j, width, height)
                    _blend(planes, r00, r01, r10, r11, fa, fb, values, task, j, features)
                for j in range(3, factors):
                    r00, r01, r10, r11, fa, fb = _place(x, y, z, t, j, width, height)
                    _blend(second, r00, r01, r10, r11, fa, fb, values, task, j, features)
                if separate:
                    for j in range(3):
                        for f in range(features):
                            out[i, j * features + f] = values[task, j, f] * values[task, 3 + j, f]
                else:
                    for f in range(features):
                        product = values[task, 0, f] * values[task, 1, f] * values[task, 2, f]
                        for j in range(3, factors):
                            product *= values[task, j, f]
                        out[i, f] = product

    return forward


@cache
def _factor_gradients(features: int, factors: int, separate: bool, with_positions: bool) -> Kernel:
    @kernel
    def factor_gradients(points, planes, second, width, height, grad, parts, moved, values, n_tasks):
        """parts[i, j, :]: gradient of factor j at point i. moved[i]: gradient of the position, where it is wanted."""
        n = points.shape[0]
        for task in numba.prange(n_tasks):
            for i in range(task * n // n_tasks, (task + 1) * n // n_tasks):
                x, y, z, t = points[i, 0], points[i, 1], points[i, 2], points[i, 3]
                for j in range(3):
                    r00, r01, r10, r11, fa, fb = _place(x, y, z, t, j, width, height)
                    _blend(planes, r00, r01, r10, r11, fa, fb, values, task, j, features)
                for j in range(3, factors):
                    r00, r01, r10, r11, fa, fb = _place(x, y, z, t, j, width, height)
                    _blend(second, r00, r01, r10, r11, fa, fb, values, task, j, features)
                for j in range(factors):
                    for f in range(features):
                        if separate:
                            other = values[task, j + 3, f] if j < 3 else values[task, j - 3, f]
                            parts[i, j, f] = grad[i, (j % 3) * features + f] * other
                        else:
                            rest = grad[i, f]
                            for k in range(factors):
                                if k != j:
                                    rest *= values[task, k, f]
                            parts[i, j, f] = rest
                if with_positions:
                    cells = np.float32(width - 1)
                    for j in range(3):
                        r00, r01, r10, r11, fa, fb = _place(x, y, z, t, j, width, height)
                        da, db = _slopes(planes, r00, r01, r10, r11, fa, fb, parts, i, j, features)
                        moved[i, 0 if j > 0 else 1] += da * cells
                        moved[i, 1 if j == 2 else 2] += db * cells
                    for j in range(3, factors):
                        r00, r01, r10, r11, fa, fb = _place(x, y, z, t, j, width, height)
                        da, db = _slopes(second, r00, r01, r10, r11, fa, fb, parts, i, j, features)
                        moved[i, j - 3] += da * cells
                        moved[i, 3] += db * np.float32(height - 1)

    return factor_gradients


@cache
def _scatter(features: int) -> Kernel:
    @kernel
    def scatter(points, parts, first, width, height, out, shards):
        """Adds the gradients of three factors, from `first` on, to those of their vertices in the table `out`."""
        one = np.float32(1.0)
        for task in numba.prange(3 * shards):
            j, shard = first + task // shards, np.uint32(task % shards)
            for i in range(points.shape[0]):
                place = _place(points[i, 0], points[i, 1], points[i, 2], points[i, 3], j, width, height)
                r00, r01, r10, r11, fa, fb = place
                for corner in range(4):
                    row = r00 if corner == 0 else (r01 if corner == 1 else (r10 if corner == 2 else r11))
                    if shards == 1 or row % np.uint32(shards) == shard:
                        weight = (fa if corner > 1 else one - fa) * (fb if corner % 2 == 1 else one - fb)
                        for f in range(features):
                            out[row, f] += weight * parts[i, j, f]

    return scatter


def _points(positions: Tensor) -> np.ndarray:
    """[n, 4] points, clamped to 0..1. NaN becomes 0, and so does a time that is not there."""
    inside = positions.detach().nan_to_num(0.0, 1.0, 0.0).clamp(0.0, 1.0)
    return array(torch.nn.functional.pad(inside, (0, 4 - inside.shape[1])))


def _table(factors: Tensor) -> np.ndarray:
    return array(factors).reshape(-1, factors.shape[3])


def _scratch(n: int, factors: int, size: int) -> tuple[np.ndarray, int]:
    """Room for the factors of one point in each task, and the number of tasks."""
    count = tasks(n)
    return np.empty((count, factors, size), np.float32), count


def features(positions: Tensor, planes: Tensor, second: Tensor | None, separate: bool) -> Tensor:
    """As `reference.features`, without a graph; coordinates are clamped, and NaN gives NaN."""
    n, width, size = positions.shape[0], planes.shape[1], planes.shape[3]
    other = planes if second is None else second
    out = np.empty((n, 3 * size if separate else size), np.float32)
    run = _forward(size, 3 if second is None else 6, separate)
    run(
        _points(positions),
        _table(planes),
        _table(other),
        width,
        other.shape[2],
        out,
        *_scratch(n, 3 if second is None else 6, size),
    )
    found, lost = torch.from_numpy(out), positions.isnan().any(-1)
    return found.masked_fill_(lost[:, None], torch.nan) if bool(lost.any()) else found


def gradients(
    positions: Tensor, planes: Tensor, second: Tensor | None, separate: bool, grad: Tensor, *, with_positions: bool
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Gradients of positions, if wanted, of planes, and of second factors, if there are any; NaN points have none."""
    n, width, size = positions.shape[0], planes.shape[1], planes.shape[3]
    other, factors = (planes, 3) if second is None else (second, 6)
    points, height = _points(positions), other.shape[2]
    given = array(torch.where(positions.isnan().any(-1, keepdim=True), 0.0, grad))
    parts = np.empty((n, factors, size), np.float32)
    moved = np.zeros((n if with_positions else 0, 4), np.float32)
    run = _factor_gradients(size, factors, separate, with_positions)
    run(points, _table(planes), _table(other), width, height, given, parts, moved, *_scratch(n, factors, size))
    found = []
    for first, factor in ((0, planes), (3, second)):
        if factor is None:
            continue
        out = np.zeros((factor[..., 0].numel(), size), np.float32)
        _scatter(size)(points, parts, first, width, height, out, -(-numba.get_num_threads() // 3))
        found.append(torch.from_numpy(out).view(factor.shape))
    to_positions = None
    if with_positions:
        clamped = (positions < 0) | (positions > 1)
        to_positions = torch.from_numpy(moved)[:, : positions.shape[1]].masked_fill(clamped, 0.0)
    return to_positions, found[0], found[1] if second is not None else None

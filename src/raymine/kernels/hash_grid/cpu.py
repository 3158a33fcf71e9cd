"""The hash grid encoding with Numba.

Forward: tasks are ranges of points. Within a task the outer loop goes over levels, so that the table of a level stays
in the cache while thousands of points read it. Backward: tasks are levels, or shards of levels if there are more
threads than levels. Each task owns the entries that it adds to, so there are no data races, and each entry adds up its
points in index order for any number of threads.
"""

from __future__ import annotations

from functools import cache

import numba
import numpy as np
import torch
from torch import Tensor

from raymine.kernels._numba import Kernel, array, device_function, inlined_function, kernel, tasks
from raymine.kernels.hash_grid.spec import GridSpec


@device_function
def _wrap(index, entries):
    """`index` modulo `entries`, for index < 2 * entries. A vertex on the far face of a dense level may need it."""
    return index - entries if index >= entries else index


@device_function
def rows(cx, cy, cz, res, entries, dense):
    """Entry of each of the eight vertices of a cell, counted from the first entry of the level; x runs fastest.

    Every argument but `dense` is uint32. The coordinates cx, cy and cz must be below `res`: a NaN may have become any
    integer, so callers replace it first.
    """
    one = np.uint32(1)
    if dense:
        a = cx + res * (cy + res * cz)
        b, c = a + res, a + res * res
        d = c + res
        return (
            _wrap(a, entries),
            _wrap(a + one, entries),
            _wrap(b, entries),
            _wrap(b + one, entries),
            _wrap(c, entries),
            _wrap(c + one, entries),
            _wrap(d, entries),
            _wrap(d + one, entries),
        )
    mask = entries - one
    y0 = cy * np.uint32(2654435761)
    y1 = y0 + np.uint32(2654435761)
    z0 = cz * np.uint32(805459861)
    z1 = z0 + np.uint32(805459861)
    x1 = cx + one
    a, b, c, d = y0 ^ z0, y1 ^ z0, y0 ^ z1, y1 ^ z1
    return (
        (cx ^ a) & mask,
        (x1 ^ a) & mask,
        (cx ^ b) & mask,
        (x1 ^ b) & mask,
        (cx ^ c) & mask,
        (x1 ^ c) & mask,
        (cx ^ d) & mask,
        (x1 ^ d) & mask,
    )


@device_function
def weights(fx, fy, fz):
    """Trilinear weights of the eight vertices, in the order of `rows`."""
    one = np.float32(1.0)
    gx, gy, gz = one - fx, one - fy, one - fz
    a, b, c, d = gy * gz, fy * gz, gy * fz, fy * fz
    return gx * a, fx * a, gx * b, fx * b, gx * c, fx * c, gx * d, fx * d


@inlined_function
def blend(part, r, w, out, i, column, features):
    """out[i, column : column + features] = sum of w[k] * part[r[k]] over the eight vertices k of a cell.

    The case of four features is unrolled, so that the compiler vectorises it: twice as fast as the loop.
    """
    if features == 4:
        a, b, c, d = w[0] * part[r[0], 0], w[0] * part[r[0], 1], w[0] * part[r[0], 2], w[0] * part[r[0], 3]
        a, b, c, d = add_row(a, b, c, d, w[1], part, r[1])
        a, b, c, d = add_row(a, b, c, d, w[2], part, r[2])
        a, b, c, d = add_row(a, b, c, d, w[3], part, r[3])
        a, b, c, d = add_row(a, b, c, d, w[4], part, r[4])
        a, b, c, d = add_row(a, b, c, d, w[5], part, r[5])
        a, b, c, d = add_row(a, b, c, d, w[6], part, r[6])
        a, b, c, d = add_row(a, b, c, d, w[7], part, r[7])
        out[i, column], out[i, column + 1], out[i, column + 2], out[i, column + 3] = a, b, c, d
    else:
        for f in range(features):
            value = w[0] * part[r[0], f] + w[1] * part[r[1], f] + w[2] * part[r[2], f] + w[3] * part[r[3], f]
            value += w[4] * part[r[4], f] + w[5] * part[r[5], f] + w[6] * part[r[6], f] + w[7] * part[r[7], f]
            out[i, column + f] = value


@inlined_function
def add_row(a, b, c, d, w, part, row):
    """(a, b, c, d) + w * part[row], for four features."""
    return a + w * part[row, 0], b + w * part[row, 1], c + w * part[row, 2], d + w * part[row, 3]


@inlined_function
def spread(part, row, w, grad, i, column, features):
    """part[row] += w * grad[i, column : column + features]."""
    if features == 4:
        part[row, 0] += w * grad[i, column]
        part[row, 1] += w * grad[i, column + 1]
        part[row, 2] += w * grad[i, column + 2]
        part[row, 3] += w * grad[i, column + 3]
    else:
        for f in range(features):
            part[row, f] += w * grad[i, column + f]


@cache
def _forward(features: int) -> Kernel:
    @kernel
    def forward(points, table, scales, resolutions, entries, offsets, dense, out, n_tasks):
        n = points.shape[0]
        for task in numba.prange(n_tasks):
            start, stop = task * n // n_tasks, (task + 1) * n // n_tasks
            for level in range(scales.shape[0]):
                scale, res, size = scales[level], resolutions[level], entries[level]
                part = table[offsets[level] : offsets[level] + size]
                is_dense, column = dense[level], level * features
                for i in range(start, stop):
                    px = points[i, 0] * scale + np.float32(0.5)
                    py = points[i, 1] * scale + np.float32(0.5)
                    pz = points[i, 2] * scale + np.float32(0.5)
                    cx, cy, cz = np.uint32(px), np.uint32(py), np.uint32(pz)
                    r = rows(cx, cy, cz, res, size, is_dense)
                    w = weights(px - np.float32(cx), py - np.float32(cy), pz - np.float32(cz))
                    blend(part, r, w, out, i, column, features)

    return forward


@cache
def _backward(features: int) -> Kernel:
    @kernel
    def backward(points, grad, scales, resolutions, entries, offsets, dense, out, shards):
        levels = scales.shape[0]
        for task in numba.prange(levels * shards):
            order, shard = task // shards, np.uint32(task % shards)
            # Fine levels miss the cache and cost more: pair each with a coarse one so that threads finish together.
            level = order // 2 if order % 2 == 0 else levels - 1 - order // 2
            scale, res, size = scales[level], resolutions[level], entries[level]
            part = out[offsets[level] : offsets[level] + size]
            is_dense, column = dense[level], level * features
            for i in range(points.shape[0]):
                px = points[i, 0] * scale + np.float32(0.5)
                py = points[i, 1] * scale + np.float32(0.5)
                pz = points[i, 2] * scale + np.float32(0.5)
                cx, cy, cz = np.uint32(px), np.uint32(py), np.uint32(pz)
                r = rows(cx, cy, cz, res, size, is_dense)
                w = weights(px - np.float32(cx), py - np.float32(cy), pz - np.float32(cz))
                for corner in range(8):
                    if shards == 1 or r[corner] % np.uint32(shards) == shard:
                        spread(part, r[corner], w[corner], grad, i, column, features)

    return backward


@cache
def _touch(features: int) -> Kernel:
    @kernel
    def touch(points, grad, scales, resolutions, entries, offsets, dense, slots, places, sums, listed, counts):
        """Gradient of the table entries that the points use. Tasks are levels.

        The entries of a level are numbered in the order in which they are first used. `sums` holds their gradients and
        `listed` their indices in the level, both from `places[level]` on. `slots` holds the number of each entry, from
        1, and 0 for unused entries. The gradients are contiguous, so adding misses the cache a quarter as often as in a
        table of the whole level.
        """
        levels, n = scales.shape[0], points.shape[0]
        for task in numba.prange(levels):
            # Fine levels miss the cache and cost more: pair each with a coarse one so that threads finish together.
            level = task // 2 if task % 2 == 0 else levels - 1 - task // 2
            scale, res, size = scales[level], resolutions[level], entries[level]
            slot = slots[offsets[level] : offsets[level] + size]
            part, entry = sums[places[level] :], listed[places[level] :]
            is_dense, column = dense[level], level * features
            found = np.int32(0)
            for i in range(n):
                px = points[i, 0] * scale + np.float32(0.5)
                py = points[i, 1] * scale + np.float32(0.5)
                pz = points[i, 2] * scale + np.float32(0.5)
                cx, cy, cz = np.uint32(px), np.uint32(py), np.uint32(pz)
                r = rows(cx, cy, cz, res, size, is_dense)
                w = weights(px - np.float32(cx), py - np.float32(cy), pz - np.float32(cz))
                for corner in range(8):
                    # No branch: whether an entry is new is unpredictable, and a misprediction costs 20 cycles.
                    at = slot[r[corner]]
                    new = np.int32(at == 0)
                    found += new
                    at += new * found
                    slot[r[corner]] = at
                    entry[at - 1] = r[corner]
                    spread(part, at - 1, w[corner], grad, i, column, features)
            for k in range(found):
                slot[entry[k]] = 0
            counts[level] = found

    return touch


@kernel
def _collect(offsets, places, sums, listed, counts, starts, index, values):
    """Concatenate the entries of all levels: their rows in the table to `index`, their gradients to `values`."""
    levels, features = offsets.shape[0], sums.shape[1]
    for level in numba.prange(levels):
        for k in range(counts[level]):
            index[starts[level] + k] = offsets[level] + listed[places[level] + k]
            for f in range(features):
                values[starts[level] + k, f] = sums[places[level] + k, f]


@kernel
def _backward_points(points, table, grad, scales, resolutions, entries, offsets, dense, out, n_tasks):
    n, features = points.shape[0], table.shape[1]
    one = np.float32(1.0)
    for task in numba.prange(n_tasks):
        for i in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            gx = gy = gz = np.float32(0.0)
            for level in range(scales.shape[0]):
                scale, column = scales[level], level * features
                px = points[i, 0] * scale + np.float32(0.5)
                py = points[i, 1] * scale + np.float32(0.5)
                pz = points[i, 2] * scale + np.float32(0.5)
                cx, cy, cz = np.uint32(px), np.uint32(py), np.uint32(pz)
                fx, fy, fz = px - np.float32(cx), py - np.float32(cy), pz - np.float32(cz)
                r = rows(cx, cy, cz, resolutions[level], entries[level], dense[level])
                for corner in range(8):
                    bx, by, bz = corner & 1, corner >> 1 & 1, corner >> 2
                    wx, wy, wz = fx if bx else one - fx, fy if by else one - fy, fz if bz else one - fz
                    dot = np.float32(0.0)
                    for f in range(features):
                        dot += table[offsets[level] + r[corner], f] * grad[i, column + f]
                    dot *= scale
                    gx += dot * wy * wz if bx else -dot * wy * wz
                    gy += dot * wx * wz if by else -dot * wx * wz
                    gz += dot * wx * wy if bz else -dot * wx * wy
            out[i, 0], out[i, 1], out[i, 2] = gx, gy, gz


Layout = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@cache
def layout(spec: GridSpec) -> Layout:
    """Scales, resolutions, entries, offsets and dense [L] of the levels, in the types that the kernels take."""
    return (
        spec.scales.astype(np.float32),
        spec.resolutions.astype(np.uint32),
        spec.entries.astype(np.uint32),
        spec.offsets,
        spec.dense,
    )


def encode(positions: Tensor, table: Tensor, spec: GridSpec) -> Tensor:
    """As `reference.encode`, without a graph."""
    n = positions.shape[0]
    out = np.empty((n, spec.width), np.float32)
    _forward(spec.features)(array(positions), array(table), *layout(spec), out, tasks(n))
    return torch.from_numpy(out)


def table_gradient(positions: Tensor, grad: Tensor, spec: GridSpec) -> Tensor:
    """positions [n, 3], gradient of the encoding [n, L * F] -> gradient of the table [entries, F]."""
    out = np.zeros((spec.total_entries, spec.features), np.float32)
    shards = -(-numba.get_num_threads() // spec.levels)
    _backward(spec.features)(array(positions), array(grad), *layout(spec), out, shards)
    return torch.from_numpy(out)


@cache
def _slots(spec: GridSpec) -> np.ndarray:
    """Scratch array `slots` of `_touch`, all 0. It is reused, because clearing it would cost more than the gradient.

    `_touch` resets the elements that it has set.
    """
    return np.zeros(spec.total_entries, np.int32)


def touched_gradient(positions: Tensor, grad: Tensor, spec: GridSpec) -> tuple[Tensor, Tensor]:
    """As `table_gradient`, but only for the m entries that some point uses: rows [m], each once; gradients [m, F]."""
    counts = np.empty(spec.levels, np.int64)
    room = np.minimum(spec.entries, 8 * positions.shape[0])
    places, total = np.cumsum(room) - room, int(room.sum())
    sums, listed = np.zeros((total, spec.features), np.float32), np.empty(total, np.uint32)
    _touch(spec.features)(array(positions), array(grad), *layout(spec), _slots(spec), places, sums, listed, counts)
    n = int(counts.sum())
    index, values = np.empty(n, np.int64), np.empty((n, spec.features), np.float32)
    _collect(spec.offsets, places, sums, listed, counts, np.cumsum(counts) - counts, index, values)
    return torch.from_numpy(index), torch.from_numpy(values)


def position_gradient(positions: Tensor, table: Tensor, grad: Tensor, spec: GridSpec) -> Tensor:
    """positions [n, 3], table, gradient of the encoding [n, L * F] -> gradient of the positions [n, 3]."""
    out = np.empty(tuple(positions.shape), np.float32)
    n = positions.shape[0]
    _backward_points(array(positions), array(table), array(grad), *layout(spec), out, tasks(n))
    return torch.from_numpy(out)

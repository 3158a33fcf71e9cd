"""Marching with Numba: a ray goes from interval to interval and skips empty cells and empty blocks of 8^3 cells.

Interval k has a closed form (`spacing`), so a skip lands on the same intervals as the reference. It goes to the first
interval whose midpoint lies behind the exit of the empty region, minus a hundredth of a step. This margin makes sure
that rounding never skips an occupied cell.

A task is a range of rays. It writes its intervals one after another to its own part of a scratch buffer, whose size is
bounded by the entry and exit of the rays. A second kernel then copies them to their packed positions.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from raymine.kernels._numba import array, device_function, kernel, tasks
from raymine.kernels.march.occupancy import BLOCK, Occupancy
from raymine.kernels.march.spacing import MOST, Spacing, too_many


@device_function
def count_at(t, shape):
    """u(t) of `spacing`. shape: (shortest, longest, cone, ta, tb, ua, ub) in float32."""
    if shape[2] == 0 or t < shape[3]:
        return t / shape[0]
    if t < shape[4]:
        return shape[5] + np.log(t / shape[3]) / shape[2]
    return shape[6] + (t - shape[4]) / shape[1]


@device_function
def distance_at(u, shape):
    """t(u) of `spacing`; `shape` as in `count_at`."""
    if shape[2] == 0 or u < shape[5]:
        return u * shape[0]
    if u < shape[6]:
        return shape[3] * np.exp((u - shape[5]) * shape[2])
    return shape[4] + (u - shape[6]) * shape[1]


@device_function
def _exit(x, y, z, vx, vy, vz, ix, iy, iz, size):
    """Distance from a point (x, y, z), in cells, to where the ray leaves block (ix, iy, iz) of `size`^3 cells.

    vx, vy, vz: signed distance per cell along each axis; huge where the ray does not move along the axis.
    """
    one = np.float32(1.0)
    tx = ((np.float32(ix) + (one if vx > 0 else np.float32(0.0))) * size - x) * vx
    ty = ((np.float32(iy) + (one if vy > 0 else np.float32(0.0))) * size - y) * vy
    tz = ((np.float32(iz) + (one if vz > 0 else np.float32(0.0))) * size - z) * vz
    return min(tx, ty, tz)


@device_function
def _per_unit(direction, half):
    """Distance along the ray per half side of the inner box on one axis; huge if the ray does not move along it."""
    return half / direction if abs(direction) > np.float32(1e-12) else np.float32(1e12)


@kernel
def _bounds(origins, directions, near, far, jitter, centre, half, outer, tight, shape, leave, start, begin, most):
    """Bounds of the walk of each ray.

    leave: where it leaves the grid. start: u where its interval 0 begins. begin, most: only intervals begin .. most - 1
    can have their midpoint in the box `tight` [2, 3] of the occupied cells. most is -1 for more than MOST steps.
    """
    slack = np.float32(0.01) * shape[0]
    for r in numba.prange(origins.shape[0]):
        t0, t1 = near[r], far[r]
        total = np.float32(0.0)
        for axis in range(3):
            total += origins[r, axis] + directions[r, axis]
            d, reach = directions[r, axis], half[axis] * outer
            a = (centre[axis] - reach - origins[r, axis]) / d
            b = (centre[axis] + reach - origins[r, axis]) / d
            if a == a and b == b:
                t0, t1 = max(t0, min(a, b)), min(t1, max(a, b))
        if not np.isfinite(total):
            t1 = -np.float32(np.inf)
        leave[r] = t1
        start[r] = np.float32(0.0)
        begin[r] = most[r] = 0
        if t1 > t0:
            start[r] = count_at(t0, shape) + jitter[r]
            for axis in range(3):
                d = directions[r, axis]
                a, b = (tight[0, axis] - origins[r, axis]) / d, (tight[1, axis] - origins[r, axis]) / d
                if a == a and b == b:
                    t0, t1 = max(t0, min(a, b) - slack), min(t1, max(a, b) + slack)
            if not count_at(leave[r], shape) - start[r] <= MOST:
                most[r] = -1
            elif t1 > t0:
                begin[r] = max(0, np.int64(count_at(t0, shape) - start[r]) - 1)
                most[r] = max(0, np.int64(np.ceil(count_at(t1, shape) - start[r])))


@kernel
def _walk(
    origins,
    directions,
    leave,
    start,
    begin,
    most,
    space,
    centre,
    half,
    per_half,
    bits,
    blocks,
    res,
    shape,
    kept,
    count,
    n_tasks,
):
    n = origins.shape[0]
    levels = bits.shape[0]
    n_blocks = res // BLOCK
    half_res = np.float32(0.5) * np.float32(res)
    one = np.float32(1.0)
    # In units of u, the midpoint of an interval lies 0.5 behind its start, or 0.5 + cone / 8 where steps grow. 0.99
    # instead of 1 is the margin for rounding.
    jump = np.float32(0.99) - np.float32(0.5) - shape[2] * np.float32(0.125)
    for task in numba.prange(n_tasks):
        first, last = task * n // n_tasks, (task + 1) * n // n_tasks
        put = space[first] if n > 0 else 0
        for r in range(first, last):
            found = 0
            ox, oy, oz = origins[r, 0], origins[r, 1], origins[r, 2]
            dx, dy, dz = directions[r, 0], directions[r, 1], directions[r, 2]
            vx, vy, vz = _per_unit(dx, half[0]), _per_unit(dy, half[1]), _per_unit(dz, half[2])
            k = begin[r]
            while k < most[r]:
                u = start[r] + np.float32(k)
                t = (distance_at(u, shape) + distance_at(u + one, shape)) * np.float32(0.5)
                if t >= leave[r]:
                    break
                x = ((ox + t * dx) - centre[0]) * per_half[0]
                y = ((oy + t * dy) - centre[1]) * per_half[1]
                z = ((oz + t * dz) - centre[2]) * per_half[2]
                reach = max(abs(x), abs(y), abs(z))
                level = 0
                scale = one
                while level < levels - 1 and reach > scale:
                    level += 1
                    scale *= np.float32(2.0)
                if reach > scale:
                    k += 1
                    continue
                to_cells = half_res / scale
                cx, cy, cz = x * to_cells + half_res, y * to_cells + half_res, z * to_cells + half_res
                ix, iy, iz = min(np.int64(cx), res - 1), min(np.int64(cy), res - 1), min(np.int64(cz), res - 1)
                cell = (ix * res + iy) * res + iz
                if (bits[level, cell >> 3] >> np.uint8(cell & 7)) & 1:
                    kept[put] = k
                    put += 1
                    found += 1
                    k += 1
                    continue
                jx, jy, jz, side = ix // BLOCK, iy // BLOCK, iz // BLOCK, BLOCK
                if blocks[level, (jx * n_blocks + jy) * n_blocks + jz]:
                    jx, jy, jz, side = ix, iy, iz, 1
                cell_side = scale / half_res
                ahead = t + cell_side * _exit(cx, cy, cz, vx, vy, vz, jx, jy, jz, np.float32(side))
                # The box of a coarse level contains the boxes of finer levels, so the skip must end where the ray
                # enters the next finer box. Levels are concentric, so it can enter only through a face of that box.
                if level > 0:
                    ahead = min(ahead, t + _enter(x, y, z, vx, vy, vz, scale * np.float32(0.5)))
                if ahead >= leave[r]:
                    break
                k = max(k + 1, np.int64(count_at(ahead, shape) - start[r] + jump))
            count[r] = found


@device_function
def _enter(x, y, z, vx, vy, vz, reach):
    """Distance to where a ray enters the cube of half side `reach` around 0; a huge number if it misses the cube."""
    ax, bx = (-reach - x) * vx, (reach - x) * vx
    ay, by = (-reach - y) * vy, (reach - y) * vy
    az, bz = (-reach - z) * vz, (reach - z) * vz
    t0 = max(min(ax, bx), min(ay, by), min(az, bz), np.float32(0.0))
    t1 = min(max(ax, bx), max(ay, by), max(az, bz))
    return t0 if t0 <= t1 else np.float32(1e30)


@kernel
def _pack(start, space, count, first, kept, shape, t_start, t_end, ray_id, n_tasks):
    """From the kept interval numbers of each task to packed intervals."""
    n = start.shape[0]
    for task in numba.prange(n_tasks):
        begin, end = task * n // n_tasks, (task + 1) * n // n_tasks
        take = space[begin] if n > 0 else 0
        for r in range(begin, end):
            for i in range(first[r], first[r] + count[r]):
                u = start[r] + np.float32(kept[take])
                t_start[i] = distance_at(u, shape)
                t_end[i] = distance_at(u + np.float32(1.0), shape)
                ray_id[i] = r
                take += 1


def march_packed(
    origins: Tensor, directions: Tensor, near: Tensor, far: Tensor, grid: Occupancy, spacing: Spacing, jitter: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.march`."""
    n = origins.shape[0]
    low, high = np.array(grid.low, np.float32), np.array(grid.high, np.float32)
    centre, half = (low + high) * np.float32(0.5), (high - low) * np.float32(0.5)
    shape = np.array((spacing.shortest, spacing.longest, spacing.cone, *spacing.knots), np.float32)
    o, d = array(origins), array(directions)
    leave, start = np.empty(n, np.float32), np.empty(n, np.float32)
    begin, most, count = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    outer = np.float32(2 ** (grid.levels - 1))
    tight = np.stack(grid.occupied_box)
    limits = array(near), array(far), array(jitter)
    _bounds(o, d, *limits, centre, half, outer, tight, shape, leave, start, begin, most)
    if n and most.min() < 0:
        raise too_many(spacing)
    space = np.cumsum(most) - most
    # The bound is generous, but the system only commits the memory pages that are written.
    kept = np.empty(int(most.sum()), np.int32)
    n_tasks = tasks(n, 64)
    _walk(
        o, d, leave, start, begin, most, space, centre, half, np.float32(1.0) / half,
        array(grid.bits), array(grid.blocks), grid.resolution, shape, kept, count, n_tasks,
    )  # fmt: skip
    total = int(count.sum())
    t_start, t_end, ray_id = np.empty(total, np.float32), np.empty(total, np.float32), np.empty(total, np.int64)
    _pack(start, space, count, np.cumsum(count) - count, kept, shape, t_start, t_end, ray_id, n_tasks)
    return torch.from_numpy(t_start), torch.from_numpy(t_end), torch.from_numpy(ray_id), torch.from_numpy(count)

"""The walk with Numba: every ray goes once from cell to cell and records its runs of samples.

A run is a stretch of consecutive cells that are all occupied or all empty; only runs with samples are recorded. Neither
the number of samples nor the number of runs is known in advance, but the number of planes between cells bounds the
runs. So a task writes its runs one after another to its own part of a scratch buffer, and a second kernel expands them
into samples. Distances are float64, as in the reference. The cell of a ray is tracked by counting the planes that it
has crossed.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from raymine.kernels._numba import array, device_function, kernel, tasks
from raymine.kernels.packed import Samples
from raymine.kernels.traverse.records import MOST, Crossings, Grids, Stride, Traversed, too_many

_RUNS = 1 << 24
"""Capacity of the scratch buffer in runs. The system only commits the memory pages that are written."""


@kernel
def _cross(origins, directions, aabbs, t_sorted, t_indices, hits, n_tasks):
    """As `reference.cross`, by insertion sort, since there are few boxes."""
    n, levels = origins.shape[0], aabbs.shape[0]
    for task in numba.prange(n_tasks):
        for r in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            for i in range(2 * levels):
                box = i % levels
                if i < levels:
                    hits[r, box] = True
                enter, leave = -np.inf, np.inf
                parallel = 0
                for axis in range(3):
                    o, d = origins[r, axis], directions[r, axis]
                    low, high = aabbs[box, axis], aabbs[box, axis + 3]
                    if not low <= high:
                        leave = -np.inf
                    if d == 0:
                        parallel += 1
                        if not low <= o <= high:
                            leave = -np.inf
                        continue
                    a, b = (low - o) / d, (high - o) / d
                    enter, leave = max(enter, min(a, b)), min(leave, max(a, b))
                t = enter if i < levels else leave
                if not (enter <= leave and leave > 0 and parallel < 3):
                    hits[r, box] = False
                    t = np.inf
                place = i
                while place > 0 and t_sorted[r, place - 1] > t:
                    t_sorted[r, place] = t_sorted[r, place - 1]
                    t_indices[r, place] = t_indices[r, place - 1]
                    place -= 1
                t_sorted[r, place] = t
                t_indices[r, place] = i


@device_function
def _straight(at, step, cone):
    """Number of steps of constant length from distance `at` until the step length starts to grow."""
    return max(np.ceil((step / cone - at) / step), 0.0)


@device_function
def _take(at, end, full, left, step, cone):
    """Samples of a run from `at` to `end`, at most `left`, and the distance at which the walk continues.

    full: whether the cells of the run are occupied; otherwise there are no samples.
    """
    if step == 0:
        return (1.0 if full else 0.0), max(end, at)
    if not full:
        dt = min(max(at * cone, step), 1e10)
        return 0.0, at + max(np.ceil((end - at) / dt - 0.5), 0.0) * dt
    n = max(np.ceil((end - at) / step - 0.5), 0.0)
    if cone == 0:
        n = min(n, left)
        return n, at + n * step
    straight = _straight(at, step, cone)
    if n >= straight:
        bend = at + straight * step
        n = straight + np.ceil(np.log(max(end / (bend * (1 + 0.5 * cone)), 1.0)) / np.log1p(cone))
    n = min(n, left)
    straight = min(straight, n)
    return n, (at + straight * step) * (1 + cone) ** (n - straight)


@device_function
def _axis(o, d, low, high, side, stride, after):
    """Planes between cells on one axis, in the order in which a ray crosses them: plane i is at begin + i * width.

    -> begin, width, index of the first plane behind `after`, offset of the cell before it, offset from cell to cell.
    A ray parallel to the planes has begin = infinity.
    """
    if d == 0:
        cell = min(max(np.int64((o - low) / (high - low) * side), 0), side - 1)
        return np.inf, 0.0, np.int64(0), cell * stride, stride
    begin, width = ((low if d > 0 else high) - o) / d, abs((high - low) / d) / side
    passed = np.ceil((after - begin) / width)
    # NaN, which an infinite box causes, becomes 0 as well.
    following = np.int64(min(passed, side + 1.0)) if passed > 0 else np.int64(0)
    cell = min(max(following - 1, 0), side - 1)
    if d > 0:
        return begin, width, following, cell * stride, stride
    return begin, width, following, (side - 1 - cell) * stride, -stride


@device_function
def _ray(r, o, d, near, far, t_sorted, t_indices, hits, cells, sides, aabbs, step, cone, limit, put, begin, span):
    """Walk ray r and write its runs to begin and span, from index `put` on.

    begin: where a run begins. span: its number of samples; with step 0, where it ends.
    -> number of runs, samples and edges (-1 for too many samples), and the distance at which the walk ended.
    """
    levels = aabbs.shape[0]
    ox, oy, oz = np.float64(o[r, 0]), np.float64(o[r, 1]), np.float64(o[r, 2])
    dx, dy, dz = np.float64(d[r, 0]), np.float64(d[r, 1]), np.float64(d[r, 2])
    nx, ny, nz = sides
    at = np.float64(near[r])
    room = np.float64(limit) if limit > 0 else np.inf
    runs, taken, edges = 0, 0.0, 0
    # State of the current run (its end so far, whether it is occupied, whether there is one), and whether the run
    # before it was occupied.
    end, full, pending, was_full = at, False, False, False
    arrived = -np.inf
    for k in range(2 * levels):
        leading, last, passing = False, False, False
        t0, t1, slack = 0.0, 0.0, 0.0
        px, wx, ix, sx = np.inf, 0.0, 0, 0
        py, wy, iy, sy = np.inf, 0.0, 0, 0
        pz, wz, iz, sz = np.inf, 0.0, 0, 0
        bx, by, bz, cell = 0.0, 0.0, 0.0, 0
        if k < 2 * levels - 1:
            entering, then_entering = t_indices[r, k] < levels, t_indices[r, k + 1] < levels
            of = t_indices[r, k] % levels
            # A ray that leaves a nested box is then in the box that it leaves next.
            level = of if entering else t_indices[r, k + 1] % levels
            if not (hits[r, of] and hits[r, level] and (entering or not then_entering)):
                continue
            t0, t1 = np.float64(t_sorted[r, k]), np.float64(t_sorted[r, k + 1])
            # Crossings from the caller may be NaN; `not t0 < t1` skips these too.
            if not t0 < t1:
                continue
            t0, t1 = max(t0, np.float64(near[r])), min(t1, np.float64(far[r]))
            if not (t0 < t1 and t1 < np.inf):
                continue
            lx, ly, lz = np.float64(aabbs[level, 0]), np.float64(aabbs[level, 1]), np.float64(aabbs[level, 2])
            hx, hy, hz = np.float64(aabbs[level, 3]), np.float64(aabbs[level, 4]), np.float64(aabbs[level, 5])
            if not (lx < hx and ly < hy and lz < hz):
                continue
            # The space before the box is an empty cell, unless the ray has already reached t0.
            leading = t0 > arrived
            arrived = max(arrived, t1)
            # Ignore planes within rounding error of the ends of the segment: they would give cells of length 0.
            slack = 1e-6 * (1 + abs(t1))
            passing = t1 >= t0 + slack
            bx, wx, ix, x, sx = _axis(ox, dx, lx, hx, nx, ny * nz, t0 + slack)
            by, wy, iy, y, sy = _axis(oy, dy, ly, hy, ny, nz, t0 + slack)
            bz, wz, iz, z, sz = _axis(oz, dz, lz, hz, nz, 1, t0 + slack)
            cell = level * (nx * ny * nz) + x + y + z
            px = bx + ix * wx if ix <= nx else np.inf
            py = by + iy * wy if iy <= ny else np.inf
            pz = bz + iz * wz if iz <= nz else np.inf
        else:
            # After the last cell, a cell of the other kind ends the pending run.
            last = True
        while leading or passing or last:
            if last:
                cell_end, occupied = at, not full
                last = False
            elif leading:
                cell_end, occupied = t0, False
                leading = False
            else:
                cell_end = min(px, min(py, pz))
                if not cell_end <= t1 - slack:
                    cell_end, passing = t1, False
                occupied = cells[cell]
                if px <= cell_end:
                    if 0 < ix < nx:
                        cell += sx
                    ix += 1
                    px = bx + ix * wx if ix <= nx else np.inf
                if py <= cell_end:
                    if 0 < iy < ny:
                        cell += sy
                    iy += 1
                    py = by + iy * wy if iy <= ny else np.inf
                if pz <= cell_end:
                    if 0 < iz < nz:
                        cell += sz
                    iz += 1
                    pz = bz + iz * wz if iz <= nz else np.inf
            # A cell extends the run if it is of the same kind. Exceptions: with step 0 every cell is its own run, and
            # with growing steps every empty cell is.
            if pending and (occupied != full or step == 0 or (cone > 0 and not full)):
                n, later = _take(at, end, full, room - taken, step, cone)
                if n > MOST:
                    return 0, 0, -1, at
                if n > 0:
                    begin[put + runs] = at
                    span[put + runs] = n if step > 0 else end
                    runs += 1
                    edges += np.int64(n) + 1
                    if step == 0 and was_full:
                        edges -= 1
                    taken += n
                at = later
                was_full = full
                if taken >= room:
                    return runs, np.int64(taken), edges, at
            end, full, pending = cell_end, occupied, True
    return runs, np.int64(taken), edges, at


@kernel
def _walk(
    o, d, near, far, mask, t_sorted, t_indices, hits, cells, sides, aabbs, step, cone, limit, most, begin, span,
    runs, count, edges, end, n_tasks,
):  # fmt: skip
    n = o.shape[0]
    for task in numba.prange(n_tasks):
        first, last = task * n // n_tasks, (task + 1) * n // n_tasks
        put = first * most
        for r in range(first, last):
            runs[r], count[r], edges[r], end[r] = 0, 0, 0, near[r]
            finite = np.isfinite(near[r]) and far[r] == far[r]
            moves = False
            for axis in range(3):
                finite = finite and np.isfinite(o[r, axis]) and np.isfinite(d[r, axis])
                moves = moves or d[r, axis] != 0
            if mask[r] and finite and moves:
                runs[r], count[r], edges[r], end[r] = _ray(
                    r, o, d, near, far, t_sorted, t_indices, hits, cells, sides, aabbs, step, cone, limit, put, begin,
                    span,
                )  # fmt: skip
                put += runs[r]


@kernel
def _spread(begin, span, runs, first_of, most, step, cone, before, ray_id, t_start, t_end, joined, n_tasks):
    """Expand runs into samples. before: the number of rays in earlier parts of the batch."""
    n = runs.shape[0]
    for task in numba.prange(n_tasks):
        first, last = task * n // n_tasks, (task + 1) * n // n_tasks
        run = first * most
        for r in range(first, last):
            i = first_of[r]
            for k in range(runs[r]):
                t, number = begin[run], np.int64(1)
                straight = np.int64(MOST) + 1
                if step > 0:
                    number = np.int64(span[run])
                    if cone > 0:
                        straight = np.int64(min(_straight(t, step, cone), MOST + 1.0))
                bend = t + straight * step
                for j in range(number):
                    # Constant steps are multiplied, so that rounding errors do not add up. Growing steps are chained:
                    # there are too few of them for rounding to matter.
                    if step == 0:
                        later = span[run]
                    elif j < straight:
                        later = begin[run] + (j + 1) * step
                    else:
                        later = (bend if j == straight else t) * (1 + cone)
                    t_start[i], t_end[i], ray_id[i] = t, later, r + before
                    joined[i] = j > 0 if step > 0 else k > 0 and span[run - 1] == t
                    t = later
                    i += 1
                run += 1


def traverse(
    origins: Tensor,
    directions: Tensor,
    bounds: tuple[Tensor, Tensor],
    grids: Grids,
    stride: Stride,
    mask: Tensor | None,
    crossings: Crossings | None,
) -> Traversed:
    """As `reference.traverse`. All floating-point tensors must have the same type, float32 or float64."""
    levels, *sides = grids.binaries.shape
    n, segments = len(origins), 2 * levels - 1
    aabbs, kind = array(grids.aabbs), array(origins).dtype
    o, d, near, far = (array(part) for part in (origins, directions, *bounds))
    walking = np.ones(n, np.bool_) if mask is None else array(mask)
    if crossings is None:
        known = np.empty((n, 2 * levels), kind), np.empty((n, 2 * levels), np.int64), np.empty((n, levels), np.bool_)
        _cross(o, d, aabbs, *known, tasks(n, 256))
    else:
        known = array(crossings.t_sorted), array(crossings.t_indices), array(crossings.hits)
    cells = array(grids.binaries).reshape(-1)
    # Most runs of a ray. A segment has at most one cell more than planes, plus an empty cell in front. With steps, runs
    # alternate with empty cells, so at most every other cell starts a run.
    most = segments * (sum(sides) + 5)
    if stride.step_size > 0:
        most = most // 2 + 1
    size = max(1, min(n, _RUNS // most))
    begin, span = np.empty(size * most, np.float64), np.empty(size * most, np.float64)
    runs, count, edges, end = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, kind)
    parts = []
    for first in range(0, n, size):
        part = slice(first, min(n, first + size))
        n_tasks = tasks(part.stop - first, 64)
        _walk(
            o[part], d[part], near[part], far[part], walking[part],
            *(column[part] for column in known), cells, tuple(sides), aabbs, *(float(x) for x in stride[:2]),
            stride.limit, most, begin, span, runs[part], count[part], edges[part], end[part], n_tasks,
        )  # fmt: skip
        if (edges[part] < 0).any():
            raise too_many(stride.step_size)
        total = int(count[part].sum())
        samples = np.empty(total, np.int64), np.empty(total, kind), np.empty(total, kind), np.empty(total, np.bool_)
        first_of = np.cumsum(count[part]) - count[part]
        _spread(
            begin, span, runs[part], first_of, most, *(float(x) for x in stride[:2]), first, *samples, n_tasks
        )  # fmt: skip
        parts.append(samples)
    columns = parts[0] if len(parts) == 1 else [np.concatenate(column) for column in zip(*parts, strict=True)]
    ray_id, t_start, t_end, joined = (torch.from_numpy(column) for column in columns)
    ends, counts, of_rays = (torch.from_numpy(column) for column in (end, count, edges))
    packed = Samples(t_start, t_end, ray_id, counts.cumsum(0) - counts, counts)
    return Traversed(packed, joined, ends, of_rays, int(edges.sum()))

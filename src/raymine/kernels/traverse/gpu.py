"""The walk in Triton: a program processes one block of rays after another, one ray per lane, from cell to cell.

The kernel runs twice over the same cells. The first run counts samples and edges. The second run writes the samples at
the positions given by the running sum of the counts. Both variants are compiled without fused multiply-adds, so that
they round in the same way and the second finds exactly what the first has counted.

Distances are float64, as in the reference: a walk adds up thousands of steps, and where planes of two axes meet, their
order decides which cell comes next. Few float64 operations depend on one another: the cell of a ray is tracked in
integers, by counting the planes that it has crossed, and the cost of a run of occupied cells does not depend on its
length.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from raymine.kernels._triton import programs
from raymine.kernels.packed import Samples
from raymine.kernels.traverse import reference
from raymine.kernels.traverse.records import MOST, Crossings, Grids, Stride, Traversed, too_many

BLOCK = 32
"""Rays per program, one per lane."""

_BOXES = 8
"""Most boxes for which a kernel computes the crossings; its work grows with the cube of their number."""

_TOO_MANY = 1 << 40
"""Added to the edges of a ray that has too many samples. No batch can have as many edges otherwise."""


@triton.jit
def _slab(o, d, low, high):
    """Where a ray enters and leaves a slab, rounded as in torch. A parallel ray is inside for all t or for none."""
    parallel = d == 0
    by = tl.where(parallel, 1.0, d)
    if o.dtype == tl.float32:
        a, b = tl.div_rn(low - o, by), tl.div_rn(high - o, by)
    else:
        a, b = (low - o) / by, (high - o) / by
    never = tl.where((low <= o) & (o <= high), float("-inf"), float("inf")).to(o.dtype)
    return tl.where(parallel, never, tl.minimum(a, b)), tl.where(parallel, -never, tl.maximum(a, b))


@triton.jit
def _box(ox, oy, oz, dx, dy, dz, aabb):
    """Where rays enter and leave a box, both infinite for a miss, and whether they hit it."""
    zero = tl.zeros_like(ox)
    lx, ly, lz = zero + tl.load(aabb), zero + tl.load(aabb + 1), zero + tl.load(aabb + 2)
    hx, hy, hz = zero + tl.load(aabb + 3), zero + tl.load(aabb + 4), zero + tl.load(aabb + 5)
    x0, x1 = _slab(ox, dx, lx, hx)
    y0, y1 = _slab(oy, dy, ly, hy)
    z0, z1 = _slab(oz, dz, lz, hz)
    enter, leave = tl.maximum(tl.maximum(x0, y0), z0), tl.minimum(tl.minimum(x1, y1), z1)
    moves = (dx != 0) | (dy != 0) | (dz != 0)
    hit = moves & (lx <= hx) & (ly <= hy) & (lz <= hz) & (enter <= leave) & (leave > 0)
    return tl.where(hit, enter, float("inf")), tl.where(hit, leave, float("inf")), hit


@triton.jit
def _earlier(t, i, last_t, last_i, best_t, best_i):
    """(t, i) if it comes after (last_t, last_i) and before (best_t, best_i), else (best_t, best_i)."""
    behind = (t > last_t) | ((t == last_t) & (i > last_i))
    better = behind & ((t < best_t) | ((t == best_t) & (i < best_i)))
    return tl.where(better, t, best_t), tl.where(better, i, best_i)


@triton.jit(do_not_specialize=["n_rays", "levels"])
def cross(origins, directions, n_rays, aabbs, levels, t_sorted, t_indices, hits, BLOCK: tl.constexpr):
    """As `reference.cross`, by selection: the next crossing is the smallest one after the last."""
    lane = tl.arange(0, BLOCK)
    for block in range(tl.program_id(0), tl.cdiv(n_rays, BLOCK), tl.num_programs(0)):
        r = tl.cast(block, tl.int64) * BLOCK + lane  # [BLOCK]
        there = r < n_rays
        o, d = origins + r * 3, directions + r * 3
        ox, oy, oz = tl.load(o, there, 0.0), tl.load(o + 1, there, 0.0), tl.load(o + 2, there, 0.0)
        dx, dy, dz = tl.load(d, there, 0.0), tl.load(d + 1, there, 0.0), tl.load(d + 2, there, 0.0)
        last_t, last_i = tl.full([BLOCK], float("-inf"), ox.dtype), tl.full([BLOCK], -1, tl.int32)
        for k in range(0, 2 * levels):
            best_t, best_i = tl.full([BLOCK], float("inf"), ox.dtype), tl.full([BLOCK], 0, tl.int32) + 2 * levels
            for level in range(0, levels):
                enter, leave, hit = _box(ox, oy, oz, dx, dy, dz, aabbs + level * 6)
                best_t, best_i = _earlier(enter, level, last_t, last_i, best_t, best_i)
                best_t, best_i = _earlier(leave, level + levels, last_t, last_i, best_t, best_i)
                tl.store(hits + r * levels + level, hit.to(tl.uint8), mask=there & (k == 0))
            tl.store(t_sorted + r * 2 * levels + k, best_t, mask=there)
            tl.store(t_indices + r * 2 * levels + k, best_i.to(tl.int64), mask=there)
            last_t, last_i = best_t, best_i


@triton.jit
def _straight(at, step, cone):
    """Number of steps of constant length from distance `at` until the step length starts to grow."""
    return tl.maximum(tl.ceil((step / cone - at) / step), 0.0)


@triton.jit
def _after(at, n, step, cone, growth, GROW: tl.constexpr):
    """Distance after n steps from `at`. growth: log(1 + cone)."""
    later = at + n * step
    if GROW:
        straight = tl.minimum(_straight(at, step, cone), n)
        later = (at + straight * step) * tl.exp((n - straight) * growth)
    return later


@triton.jit
def _steps_until(at, end, step, cone, growth, GROW: tl.constexpr):
    """The smallest n for which the midpoint of step n (from 0) after `at` is at or behind `end`."""
    n = tl.maximum(tl.ceil((end - at) / step - 0.5), 0.0)
    if GROW:
        straight = _straight(at, step, cone)
        ratio = end / ((at + straight * step) * (1.0 + 0.5 * cone))
        n = tl.where(n < straight, n, straight + tl.ceil(tl.log(tl.maximum(ratio, 1.0)) / growth))
    return n


@triton.jit
def _take(
    at, taken, edges, end, full, was_full, over, room, step, cone, growth, r, first, stop, ray_id, t_start, t_end,
    joined, WRITE: tl.constexpr, STEPS: tl.constexpr, GROW: tl.constexpr, MOST: tl.constexpr, TOO_MANY: tl.constexpr,
):  # fmt: skip
    """End the runs of the lanes where `over` is set: count or write their samples, and advance `at`.

    Most cells end no run, and most runs are empty. So the float64 arithmetic is skipped if no lane needs it.
    """
    over = over & (taken < room)
    if tl.max(over.to(tl.int32), 0) > 0:
        later = tl.maximum(end, at)
        if STEPS:
            dt = tl.minimum(tl.maximum(at * cone, step), 1e10)
            later = at + tl.maximum(tl.ceil((end - at) / dt - 0.5), 0.0) * dt
        sampled = over & full
        if tl.max(sampled.to(tl.int32), 0) > 0:
            n = tl.where(sampled, 1.0, 0.0).to(tl.float64)
            if STEPS:
                n = tl.minimum(_steps_until(at, end, step, cone, growth, GROW), (room - taken).to(tl.float64))
                n = tl.where(sampled, n, 0.0)
                later = tl.where(full, _after(at, n, step, cone, growth, GROW), later)
            # With steps, an empty cell lies between two runs, so a run never starts where the one before ended.
            linked = was_full
            if STEPS:
                linked = taken < 0
            edges += tl.where(n > 0, tl.minimum(n, 1.0 * MOST).to(tl.int64) + tl.where(linked, 0, 1), 0)
            edges += tl.where(n > MOST, TOO_MANY, 0)
            number = tl.minimum(n, 1.0 * MOST).to(tl.int32)
            if WRITE:
                kind = t_start.dtype.element_ty
                t0 = at
                for k in range(0, tl.max(number, 0)):
                    t1 = end
                    if STEPS:
                        t1 = _after(at, tl.zeros_like(at) + (k + 1), step, cone, growth, GROW)
                    place = first + taken + k
                    live = (k < number) & (place < stop)
                    tl.store(ray_id + place, r, mask=live)
                    tl.store(t_start + place, t0.to(kind), mask=live)
                    tl.store(t_end + place, t1.to(kind), mask=live)
                    tl.store(joined + place, (linked | (k > 0)).to(tl.uint8), mask=live)
                    t0 = t1
            taken += number.to(tl.int64)
        at = tl.where(over, later, at)
    return at, taken, edges


@triton.jit
def _axis(o, d, low, high, side, after):
    """Planes between cells on one axis, in the order in which a ray crosses them: plane i is at begin + i * width.

    -> begin, width, index of the first plane behind `after`. A ray parallel to the planes has begin = infinity, and the
    index of the plane after its cell.
    """
    moves = d != 0
    by = tl.where(moves, d, 1.0)
    begin, width = (tl.where(d < 0, high, low) - o) / by, tl.abs((high - low) / by) / side
    passed = tl.where(moves, tl.ceil((after - begin) / width), tl.floor((o - low) / (high - low) * side) + 1.0)
    # NaN, which an infinite box causes, becomes 0 as well.
    passed = tl.where(passed > 0, tl.minimum(passed, side + 1.0), 0.0)
    return tl.where(moves, begin, float("inf")), tl.where(moves, width, 0.0), passed.to(tl.int32)


@triton.jit
def _cell(following, d, side):
    """Index along the axis of the cell before plane `following`."""
    cell = tl.minimum(tl.maximum(following - 1, 0), side - 1)
    return tl.where(d < 0, side - 1 - cell, cell)


@triton.jit
def _plane(begin, width, i, side):
    """Distance of plane i; infinity after the last plane."""
    return tl.where(i <= side, begin + i.to(tl.float64) * width, float("inf"))


@triton.jit(
    do_not_specialize=[
        "n_rays", "levels", "nx", "ny", "nz", "step_high", "step_low", "cone_high", "cone_low", "limit"
    ]
)  # fmt: skip
def walk(
    origins, directions, near, far, mask, t_sorted, t_indices, hits, n_rays, binaries, aabbs, levels, nx, ny, nz,
    step_high, step_low, cone_high, cone_low, limit, counted, running, end, ray_id, t_start, t_end, joined,
    WRITE: tl.constexpr, MASKED: tl.constexpr, STEPS: tl.constexpr, GROW: tl.constexpr,
    MOST: tl.constexpr, TOO_MANY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Walk rays [R] through grids, along their crossings with the boxes.

    Step and cone are float64 numbers, each passed as the sum of two float32 numbers. WRITE=False counts samples and
    edges into counted [2, R] and sets end [R]. WRITE=True writes the samples at the positions given by running [2, R],
    the inclusive running sum of `counted`.
    """
    step = tl.cast(step_high, tl.float64) + tl.cast(step_low, tl.float64)
    cone = tl.cast(cone_high, tl.float64) + tl.cast(cone_low, tl.float64)
    growth = tl.log(1.0 + cone)
    room = tl.where(limit > 0, tl.cast(limit, tl.int64), tl.cast(1 << 62, tl.int64))
    cells = tl.cast(nx, tl.int64) * ny * nz
    lane = tl.arange(0, BLOCK)
    for block in range(tl.program_id(0), tl.cdiv(n_rays, BLOCK), tl.num_programs(0)):
        r = tl.cast(block, tl.int64) * BLOCK + lane  # [BLOCK]
        there = r < n_rays
        o, d = origins + r * 3, directions + r * 3
        ox, oy, oz = tl.load(o, there, 0.0), tl.load(o + 1, there, 0.0), tl.load(o + 2, there, 0.0)
        dx, dy, dz = tl.load(d, there, 0.0), tl.load(d + 1, there, 0.0), tl.load(d + 2, there, 0.0)
        close, away = tl.load(near + r, there, 0.0), tl.load(far + r, there, 0.0)
        ox, oy, oz = ox.to(tl.float64), oy.to(tl.float64), oz.to(tl.float64)
        dx, dy, dz = dx.to(tl.float64), dy.to(tl.float64), dz.to(tl.float64)
        close, away = close.to(tl.float64), away.to(tl.float64)
        # Only finite numbers are below infinity; the comparisons x == x find NaN, which the maxima may drop.
        largest = tl.maximum(tl.maximum(tl.abs(ox), tl.abs(oy)), tl.abs(oz))
        longest = tl.maximum(tl.maximum(tl.abs(dx), tl.abs(dy)), tl.abs(dz))
        whole = (ox == ox) & (oy == oy) & (oz == oz) & (dx == dx) & (dy == dy) & (dz == dz) & (away == away)
        live = there & whole & (largest < float("inf")) & (longest < float("inf")) & (longest > 0)
        live = live & (tl.abs(close) < float("inf"))
        if MASKED:
            live = live & (tl.load(mask + r, there, 0) != 0)
        first = tl.zeros([BLOCK], tl.int64)
        stop = tl.zeros([BLOCK], tl.int64)
        if WRITE:
            stop = tl.load(running + r, there, 0)
            first = stop - tl.load(counted + r, there, 0)
            live = live & (stop > first)
        at = close
        taken = tl.zeros([BLOCK], tl.int64)
        edges = tl.zeros([BLOCK], tl.int64)
        # State of the current run (its end so far, whether it is occupied, whether there is one), and whether the run
        # before it was occupied.
        run_end = close
        full = lane < 0
        pending = lane < 0
        was_full = lane < 0
        arrived = tl.full([BLOCK], float("-inf"), tl.float64)
        for k in range(0, 2 * levels - 1):
            i0 = tl.load(t_indices + r * 2 * levels + k, live, 0).to(tl.int32)
            i1 = tl.load(t_indices + r * 2 * levels + k + 1, live, 0).to(tl.int32)
            t0 = tl.load(t_sorted + r * 2 * levels + k, live, 0.0).to(tl.float64)
            t1 = tl.load(t_sorted + r * 2 * levels + k + 1, live, 0.0).to(tl.float64)
            # A ray that leaves a nested box is then in the box that it leaves next.
            entering = i0 < levels
            of = tl.maximum(i0 % levels, 0)
            level = tl.where(entering, of, tl.maximum(i1 % levels, 0))
            inside = live & (taken < room) & (entering | (i1 >= levels)) & (t0 < t1)
            inside = inside & (tl.load(hits + r * levels + of, inside, 0) != 0)
            inside = inside & (tl.load(hits + r * levels + level, inside, 0) != 0)
            t0, t1 = tl.maximum(t0, close), tl.minimum(t1, away)
            inside = inside & (t0 < t1) & (t1 < float("inf"))
            box = aabbs + level * 6
            lx, ly, lz = tl.load(box, inside, 0.0), tl.load(box + 1, inside, 0.0), tl.load(box + 2, inside, 0.0)
            hx, hy, hz = tl.load(box + 3, inside, 1.0), tl.load(box + 4, inside, 1.0), tl.load(box + 5, inside, 1.0)
            inside = inside & (lx < hx) & (ly < hy) & (lz < hz)
            lx, ly, lz = lx.to(tl.float64), ly.to(tl.float64), lz.to(tl.float64)
            hx, hy, hz = hx.to(tl.float64), hy.to(tl.float64), hz.to(tl.float64)
            # The space before the box is an empty cell, unless the ray has already reached t0.
            leading = inside & (t0 > arrived)
            arrived = tl.where(inside, tl.maximum(arrived, t1), arrived)
            # Ignore planes within rounding error of the ends of the segment: they would give cells of length 0.
            slack = 1e-6 * (1.0 + tl.abs(t1))
            passing = inside & (t1 >= t0 + slack)
            bx, wx, ix = _axis(ox, dx, lx, hx, nx, t0 + slack)
            by, wy, iy = _axis(oy, dy, ly, hy, ny, t0 + slack)
            bz, wz, iz = _axis(oz, dz, lz, hz, nz, t0 + slack)
            grid = binaries + level.to(tl.int64) * cells
            while tl.max((leading | passing).to(tl.int32), 0) > 0:
                px, py, pz = _plane(bx, wx, ix, nx), _plane(by, wy, iy, ny), _plane(bz, wz, iz, nz)
                leave = tl.minimum(px, tl.minimum(py, pz))
                more = leave <= t1 - slack
                leave = tl.where(more, leave, t1)
                here = passing & (leading == 0)
                cell = (_cell(ix, dx, nx) * ny + _cell(iy, dy, ny)).to(tl.int64) * nz + _cell(iz, dz, nz)
                occupied = tl.load(grid + cell, mask=here, other=0) != 0
                met = here | leading
                # A cell extends the run if it is of the same kind. Exceptions: without steps every cell is its own run,
                # and with growing steps every empty cell is.
                if STEPS:
                    over = occupied != full
                    if GROW:
                        over = over | (full == 0)
                    over = over & met & pending
                else:
                    over = met & pending
                at, taken, edges = _take(
                    at, taken, edges, run_end, full, was_full, over, room, step, cone, growth, r, first, stop, ray_id,
                    t_start, t_end, joined, WRITE, STEPS, GROW, MOST, TOO_MANY,
                )  # fmt: skip
                was_full = tl.where(over, full, was_full)
                run_end = tl.where(met, tl.where(leading, t0, leave), run_end)
                full = tl.where(met, occupied, full)
                pending = pending | met
                ix += (here & (px <= leave)).to(tl.int32)
                iy += (here & (py <= leave)).to(tl.int32)
                iz += (here & (pz <= leave)).to(tl.int32)
                passing = passing & (leading | more) & (taken < room)
                leading = lane < 0
        at, taken, edges = _take(
            at, taken, edges, run_end, full, was_full, pending, room, step, cone, growth, r, first, stop, ray_id,
            t_start, t_end, joined, WRITE, STEPS, GROW, MOST, TOO_MANY,
        )  # fmt: skip
        if not WRITE:
            tl.store(counted + r, taken, mask=there)
            tl.store(counted + n_rays + r, edges, mask=there)
            tl.store(end + r, at.to(end.dtype.element_ty), mask=there)


def traverse(
    origins: Tensor,
    directions: Tensor,
    bounds: tuple[Tensor, Tensor],
    grids: Grids,
    stride: Stride,
    mask: Tensor | None,
    crossings: Crossings | None,
) -> Traversed:
    """As `reference.traverse`. All floating-point tensors must have the same type, float32 or float64.

    Waits for the device once, for the numbers of samples and edges.
    """
    device, kind, n = origins.device, origins.dtype, len(origins)
    levels, *sides = grids.binaries.shape
    o, d, near, far, aabbs = (part.contiguous() for part in (origins, directions, *bounds, grids.aabbs))
    many = (programs(device, 32),)
    if crossings is None and levels <= _BOXES:
        crossings = Crossings(
            torch.empty(n, 2 * levels, dtype=kind, device=device),
            torch.empty(n, 2 * levels, dtype=torch.int64, device=device),
            torch.empty(n, levels, dtype=torch.bool, device=device),
        )
        cross[many](
            o, d, n, aabbs, levels, *crossings[:2], crossings.hits.view(torch.uint8),
            BLOCK=BLOCK, num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
    elif crossings is None:
        crossings = reference.cross(o, d, aabbs)
    counted = torch.empty(2, n, dtype=torch.int64, device=device)
    end = torch.empty(n, dtype=kind, device=device)
    inputs = (
        o, d, near, far, end if mask is None else _bytes(mask), crossings.t_sorted.contiguous(),
        crossings.t_indices.contiguous(), _bytes(crossings.hits), n, _bytes(grids.binaries), aabbs, levels, *sides,
        *_halves(stride.step_size), *_halves(stride.cone_angle), min(stride.limit, 2**31 - 1), counted,
    )  # fmt: skip
    constants = {
        "MASKED": mask is not None, "STEPS": stride.step_size > 0, "GROW": stride.cone_angle > 0,
        "MOST": MOST, "TOO_MANY": _TOO_MANY, "BLOCK": BLOCK, "num_warps": 1, "enable_fp_fusion": False,
    }  # fmt: skip
    walk[many](*inputs, counted, end, counted, end, end, counted, WRITE=False, **constants)
    running = counted.cumsum(1)
    total, n_edges = running[:, -1].tolist()
    if n_edges >= _TOO_MANY:
        raise too_many(stride.step_size)
    ray_id = torch.empty(total, dtype=torch.int64, device=device)
    t_start, t_end = (torch.empty(total, dtype=kind, device=device) for _ in range(2))
    joined = torch.empty(total, dtype=torch.bool, device=device)
    if total:
        walk[many](*inputs, running, end, ray_id, t_start, t_end, _bytes(joined), WRITE=True, **constants)
    samples = Samples(t_start, t_end, ray_id, running[0] - counted[0], counted[0])
    return Traversed(samples, joined, end, counted[1], n_edges)


def _bytes(flags: Tensor) -> Tensor:
    return flags.contiguous().view(torch.uint8)


def _halves(number: float) -> tuple[float, float]:
    """A float64 number as the sum of two float32 numbers, since Triton passes scalar arguments as float32."""
    number = min(number, 1e30)
    high = float(np.float32(number))
    return high, number - high

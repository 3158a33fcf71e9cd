"""Marching in Triton: a program processes one ray after another, in chunks of intervals.

The kernel runs twice over the same intervals. The first run counts them. The second run writes them at the position
given by the running sum of the counts. So samples are in the order of their rays, in whatever order programs run.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from raymine.kernels._triton import programs
from raymine.kernels.march.occupancy import Occupancy
from raymine.kernels.march.spacing import Spacing


@triton.jit
def count_at(t, shortest, longest, cone, ta, tb, ua, ub, CONE: tl.constexpr):
    """`Spacing.count_at`."""
    u = t / shortest
    if CONE:
        middle = ua + tl.log(tl.minimum(tl.maximum(t, ta), tb) / ta) / cone
        u = tl.where(t < ta, u, tl.where(t < tb, middle, ub + (t - tb) / longest))
    return u


@triton.jit
def distance_at(u, shortest, longest, cone, ta, tb, ua, ub, CONE: tl.constexpr):
    """`Spacing.distance_at`."""
    t = u * shortest
    if CONE:
        middle = ta * tl.exp((tl.minimum(tl.maximum(u, ua), ub) - ua) * cone)
        t = tl.where(u < ua, t, tl.where(u < ub, middle, tb + (u - ub) * longest))
    return t


@triton.jit
def _slab(low, high, origin, direction):
    """Where a line enters and leaves the slab between two planes. A line in one of the planes is inside for all t."""
    a, b = (low - origin) / direction, (high - origin) / direction
    near, far = tl.minimum(a, b), tl.maximum(a, b)
    return tl.where(near == near, near, float("-inf")), tl.where(far == far, far, float("inf"))


@triton.jit
def _clip(ox, oy, oz, dx, dy, dz, near, far, lx, ly, lz, hx, hy, hz):
    """Where a ray enters and leaves the box lx .. hx, ly .. hy, lz .. hz, restricted to near .. far."""
    x0, x1 = _slab(lx, hx, ox, dx)
    y0, y1 = _slab(ly, hy, oy, dy)
    z0, z1 = _slab(lz, hz, oz, dz)
    entry = tl.maximum(tl.maximum(x0, y0), tl.maximum(z0, near))
    leave = tl.minimum(tl.minimum(x1, y1), tl.minimum(z1, far))
    return entry, leave


@triton.jit
def _occupied(x, y, z, grid, valid, RES: tl.constexpr, LEVELS: tl.constexpr):
    """Whether points lie in occupied cells.

    x, y, z: in units of cells of the inner box, from its low corner if LEVELS is 1 and from its centre otherwise.
    valid: points that are inside the whole grid, up to rounding; the others count as empty.
    """
    if LEVELS == 1:
        inside = valid
        first = tl.full([], 0, tl.uint32)
    else:
        reach = tl.maximum(tl.abs(x), tl.maximum(tl.abs(y), tl.abs(z)))
        level = tl.zeros_like(reach).to(tl.int32)
        shrink = tl.zeros_like(reach) + 1.0
        for _ in tl.static_range(LEVELS - 1):
            beyond = reach * shrink > 0.5 * RES
            level += beyond.to(tl.int32)
            shrink = tl.where(beyond, shrink * 0.5, shrink)
        inside = valid & (reach * shrink <= 0.5 * RES)
        first = level.to(tl.uint32) * (RES * RES * RES)
        x, y, z = x * shrink + 0.5 * RES, y * shrink + 0.5 * RES, z * shrink + 0.5 * RES
    # As unsigned integers, so that the minimum also catches negative indices: the look-up never leaves the grid.
    most = tl.full([], RES - 1, tl.uint32)
    ix = tl.minimum(x.to(tl.int32).to(tl.uint32), most)
    iy = tl.minimum(y.to(tl.int32).to(tl.uint32), most)
    iz = tl.minimum(z.to(tl.int32).to(tl.uint32), most)
    return tl.load(grid + (first + (ix * RES + iy) * RES + iz), mask=inside, other=0) != 0


@triton.jit(do_not_specialize=["capacity", "room"])
def march(
    rays, jitter, n_rays, grid, box, spacing, counted, running, count, first, seen, hitting, t_start, t_end, ray_id,
    totals, capacity, room,
    WRITE: tl.constexpr, CONE: tl.constexpr, RES: tl.constexpr, LEVELS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Count (WRITE=False) or write (WRITE=True) the samples of rays.

    rays [R, 8]: origin, direction, near, far. grid [LEVELS, RES^3] uint8: not 0 where a cell is occupied.
    box [12]: centre and 2 / side of the inner box; low and high corner of a box around the occupied cells.
    spacing [7]: shortest, longest, cone, and the four knots of `Spacing`.

    WRITE=False fills counted [room] int64: the number of samples of each ray, plus 2^32 if there are any; 0 for rows
    after the last ray. The caller computes running [room], the inclusive running sum of `counted`.
    WRITE=True writes t_start, t_end, ray_id [capacity] and first, count [R]. It sets seen [R] to 0 for `infer`, and
    lists the rays that have samples in hitting [R]. A ray whose samples would end beyond `capacity` gets none.

    totals [5]: samples that were written (no more than the position of the first ray that did not fit); samples that
    were found; rays that found samples; rays that did not fit; and 0, the initial value of the queue of `infer`.
    """
    n = tl.load(n_rays)
    shortest, longest, cone = tl.load(spacing), tl.load(spacing + 1), tl.load(spacing + 2)
    ta, tb, ua, ub = tl.load(spacing + 3), tl.load(spacing + 4), tl.load(spacing + 5), tl.load(spacing + 6)
    cx, cy, cz = tl.load(box), tl.load(box + 1), tl.load(box + 2)
    px, py, pz = tl.load(box + 3), tl.load(box + 4), tl.load(box + 5)
    lx, ly, lz = tl.load(box + 6), tl.load(box + 7), tl.load(box + 8)
    hx, hy, hz = tl.load(box + 9), tl.load(box + 10), tl.load(box + 11)
    far_reach = 1.0 * (1 << (LEVELS - 1))
    sx, sy, sz = far_reach / px, far_reach / py, far_reach / pz
    lane = tl.arange(0, CHUNK)
    if tl.program_id(0) == 0:
        if WRITE:
            found = tl.load(running + room - 1)
            samples = (found & 0xFFFFFFFF).to(tl.int32)
            tl.atomic_min(totals, samples, sem="relaxed")
            tl.store(totals + 1, samples)
            tl.store(totals + 2, (found >> 32).to(tl.int32))
        else:
            tl.store(totals, 0x7FFFFFFF)
            tl.store(totals + 3, 0)
            tl.store(totals + 4, 0)
    if not WRITE:
        for rest in range(n + tl.program_id(0) * CHUNK, room, tl.num_programs(0) * CHUNK):
            tl.store(counted + rest + lane, lane.to(tl.int64) * 0, mask=rest + lane < room)
    for r in range(tl.program_id(0), n, tl.num_programs(0)):
        ray = rays + r * 8
        ox, oy, oz = tl.load(ray), tl.load(ray + 1), tl.load(ray + 2)
        dx, dy, dz = tl.load(ray + 3), tl.load(ray + 4), tl.load(ray + 5)
        near, far = tl.load(ray + 6), tl.load(ray + 7)
        # Interval 0 starts where the ray enters the whole grid, so intervals do not depend on which cells are occupied.
        entry, leave = _clip(ox, oy, oz, dx, dy, dz, near, far, cx - sx, cy - sy, cz - sz, cx + sx, cy + sy, cz + sz)
        begin, end = _clip(ox, oy, oz, dx, dy, dz, entry, leave, lx, ly, lz, hx, hy, hz)
        finite = tl.abs(ox + oy + oz + dx + dy + dz) < float("inf")
        hit = finite & (leave > entry) & (end > begin)
        start = count_at(tl.where(hit, entry, 1.0), shortest, longest, cone, ta, tb, ua, ub, CONE) + tl.load(jitter + r)
        low = count_at(tl.where(hit, begin, 1.0), shortest, longest, cone, ta, tb, ua, ub, CONE) - start
        high = count_at(tl.where(hit, end, 1.0), shortest, longest, cone, ta, tb, ua, ub, CONE) - start
        k = tl.maximum(low.to(tl.int32) - 1, 0)
        last = tl.where(hit, high.to(tl.int32) + 2, 0)
        put = 0
        limit = 0
        if WRITE:
            sums = tl.load(running + r)
            limit = (sums & 0xFFFFFFFF).to(tl.int32)
            put = limit - (tl.load(counted + r) & 0xFFFFFFFF).to(tl.int32)
            tl.store(hitting + (sums >> 32) - 1, r, mask=limit > put)
            tl.store(seen + r, 0)
            fits = limit <= capacity
            if (limit > put) & (limit > capacity):
                tl.atomic_min(totals, put, sem="relaxed")
                tl.atomic_add(totals + 3, 1, sem="relaxed")
            tl.store(first + r, tl.where(fits, put, 0))
            tl.store(count + r, tl.where(fits, limit - put, 0))
            limit = tl.where(fits, limit, put)
        # Positions in the units of `_occupied` are a + t v. Without a cone they are a + u v, which needs no t.
        ax, ay, az = (ox - cx) * px * (0.5 * RES), (oy - cy) * py * (0.5 * RES), (oz - cz) * pz * (0.5 * RES)
        vx, vy, vz = dx * px * (0.5 * RES), dy * py * (0.5 * RES), dz * pz * (0.5 * RES)
        if LEVELS == 1:
            ax, ay, az = ax + 0.5 * RES, ay + 0.5 * RES, az + 0.5 * RES
        until = leave
        if not CONE:
            vx, vy, vz = vx * shortest, vy * shortest, vz * shortest
            ax, ay, az = ax + 0.5 * vx, ay + 0.5 * vy, az + 0.5 * vz
            until = leave / shortest - 0.5
        while (k < last) & ((put < limit) | (not WRITE)):
            u = start + (k + lane).to(tl.float32)
            t0 = distance_at(u, shortest, longest, cone, ta, tb, ua, ub, CONE)
            t1 = distance_at(u + 1.0, shortest, longest, cone, ta, tb, ua, ub, CONE)
            at = (t0 + t1) * 0.5 if CONE else u
            valid = (at < until) & (k + lane < last)
            full = _occupied(ax + at * vx, ay + at * vy, az + at * vz, grid, valid, RES, LEVELS)
            ones = full.to(tl.int32)
            if WRITE:
                place = put + tl.cumsum(ones, 0) - 1
                # The two variants of this kernel may round differently, so the second may find more intervals than were
                # counted: drop these.
                full = full & (place < limit)
                tl.store(t_start + place, t0, mask=full)
                tl.store(t_end + place, t1, mask=full)
                tl.store(ray_id + place, lane * 0 + r, mask=full)
            put += tl.sum(ones)
            k += CHUNK
        if WRITE:
            # If it found fewer than were counted, fill the rest with intervals of length 0.
            while put < limit:
                missing = put + lane < limit
                tl.store(t_start + put + lane, lane * 0.0 + leave, mask=missing)
                tl.store(t_end + put + lane, lane * 0.0 + leave, mask=missing)
                tl.store(ray_id + put + lane, lane * 0 + r, mask=missing)
                put += CHUNK
        else:
            tl.store(counted + r, tl.cast(put, tl.int64) + (tl.cast(put > 0, tl.int64) << 32))


CHUNK = 128
"""Intervals of a ray in one chunk: 64 and 256 take as long, and so do 4 rays with 64 intervals each."""
MARCHERS = 128
"""Programs per multiprocessor, of which 32 run at a time. More programs balance the load, as rays differ in length."""
SAMPLES = 0xFFFFFFFF
"""Mask of the bits of `counted` and `running` that count samples; the bits above count rays with samples."""


@lru_cache(maxsize=64)
def spacing_numbers(spacing: Spacing, device: torch.device) -> Tensor:
    """The argument `spacing` [7] of `march`. Infinite knots become 1e30; with cone = 0 the kernel does not use them.

    Cached, because a copy from the host waits until the device has finished its work. Do not modify the result.
    """
    numbers = (spacing.shortest, spacing.longest, spacing.cone, *spacing.knots)
    return torch.tensor([min(number, 1e30) for number in numbers], device=device)


def march_packed(
    origins: Tensor, directions: Tensor, near: Tensor, far: Tensor, grid: Occupancy, spacing: Spacing, jitter: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.march`. Waits for the device once, for the number of samples to allocate."""
    device, n = origins.device, len(origins)
    rays = torch.cat((origins, directions, near[:, None], far[:, None]), 1).float().contiguous()
    count, first, seen, hitting = (torch.empty(n, dtype=torch.int32, device=device) for _ in range(4))
    counted, running = (torch.empty(n, dtype=torch.int64, device=device) for _ in range(2))
    totals = torch.empty(5, dtype=torch.int32, device=device)
    n_rays = torch.full_like(totals[:1], n)
    constants = {"CONE": spacing.cone > 0, "RES": grid.resolution, "LEVELS": grid.levels, "CHUNK": CHUNK}

    def walk(write: bool, t_start: Tensor, t_end: Tensor, ray_id: Tensor) -> None:
        march[(programs(device, MARCHERS),)](
            rays, jitter.float().contiguous(), n_rays, grid.cells, grid.box_numbers, spacing_numbers(spacing, device),
            counted, running, count, first, seen, hitting, t_start, t_end, ray_id, totals, len(t_start), n,
            WRITE=write, **constants, num_warps=1,
        )  # fmt: skip

    nothing = torch.zeros(0, device=device)
    if n:
        walk(False, nothing, nothing, n_rays)
        torch.cumsum(counted, 0, out=running)
    samples = int(running[-1]) & SAMPLES if n else 0
    t_start, t_end = torch.empty(samples, device=device), torch.empty(samples, device=device)
    ray_id = torch.empty(samples, dtype=torch.int32, device=device)
    if samples:
        walk(True, t_start, t_end, ray_id)
    return t_start, t_end, ray_id.long(), counted & SAMPLES

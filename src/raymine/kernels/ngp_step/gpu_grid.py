"""Updates of the occupancy grid in Triton. `samplers.OccupancySampler.update` is the definition.

`list_cells` chooses cells, `visit` computes the opacity of one step at a random point of each, `put` stores the new
values, `mark` decides which cells are occupied, and `fit` computes a box around the occupied cells.
"""

from __future__ import annotations

import triton
import triton.language as tl

from raymine.kernels.activations import CAP
from raymine.kernels.ngp_step.gpu import _density_of, _place
from raymine.kernels.philox.gpu import uniform, word
from raymine.kernels.philox.op import Stream

_CELL: tl.constexpr = tl.constexpr(int(Stream.OCCUPANCY_CELL))
_OFFSET: tl.constexpr = tl.constexpr(int(Stream.OCCUPANCY_OFFSET))
_CAP: tl.constexpr = tl.constexpr(CAP)


@triton.jit(do_not_specialize=["level", "levels", "n", "half"])
def list_cells(seed, step, level, levels, n_occupied, n, half, cells, wanted, BLOCK: tl.constexpr):
    """Choose cells of a level to visit.

    cells [half]: every k-th cell with k = n / half, starting at a random offset. wanted [half]: ranks, from 1, of
    occupied cells, chosen in the same way among the occupied cells. If there are at most `half` occupied cells, all of
    them are chosen, and the rest of `wanted` is n_occupied + 1, the rank of no cell.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < half
    draw = tl.load(step) * levels + level
    s0, s1 = tl.load(seed), tl.load(seed + 1)
    first = word(s0, s1, draw, _CELL, i * 0).to(tl.int64)
    second = word(s0, s1, draw, _CELL, i * 0 + 1).to(tl.int64)
    place = i.to(tl.int64)
    tl.store(cells + i, (place * n + ((first * n) >> 32)) // half % n, mask=live)
    there = tl.load(n_occupied).to(tl.int64)
    spread = (place * there + ((second * there) >> 32)) // half
    rank = tl.where(there > half, spread, place)
    tl.store(wanted + i, (tl.where(rank < there, rank, there) + 1).to(tl.int32), mask=live)


@triton.jit(do_not_specialize=["n", "level", "levels"])
def visit(
    cells, n, seed, step, level, levels, reach, box, length, decay, values, out, table, weights, low,
    scales, resolutions, entries, offsets, dense,
    RES: tl.constexpr, ALL: tl.constexpr, L: tl.constexpr, LP: tl.constexpr, F: tl.constexpr, H: tl.constexpr,
    HP: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, MIDDLE: tl.constexpr, UNBOUNDED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """out [n] = max(decay * value of the cell, opacity of a step of `length` at a random point of the cell).

    cells [n]: indices of cells; RES^3 means no cell. values [RES^3]; decay [1]. ALL: the cells are 0 .. n - 1 and
    `cells` is not read; `out` may then be `values`. box [6]: centre and 2 / side of the inner box. reach: 2^level.
    """
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    live = i < n
    cell = i
    if not ALL:
        cell = tl.load(cells + i, mask=live, other=RES * RES * RES)
        live = live & (cell < RES * RES * RES)
        cell = tl.where(live, cell, 0)
    draw = tl.load(step) * levels + level
    s0, s1 = tl.load(seed), tl.load(seed + 1)
    ox, oy, oz = (
        uniform(s0, s1, draw, _OFFSET, i * 3),
        uniform(s0, s1, draw, _OFFSET, i * 3 + 1),
        uniform(s0, s1, draw, _OFFSET, i * 3 + 2),
    )
    ux = (((cell // (RES * RES)).to(tl.float32) + ox) * (2.0 / RES) - 1.0) * reach
    uy = (((cell // RES % RES).to(tl.float32) + oy) * (2.0 / RES) - 1.0) * reach
    uz = (((cell % RES).to(tl.float32) + oz) * (2.0 / RES) - 1.0) * reach
    x, y, z = _place(
        tl.load(box) + ux / tl.load(box + 3),
        tl.load(box + 1) + uy / tl.load(box + 4),
        tl.load(box + 2) + uz / tl.load(box + 5),
        low, UNBOUNDED,
    )  # fmt: skip
    raw = _density_of(
        x, y, z, table, weights, scales, resolutions, entries, offsets, dense, L, LP, F, H, HP, G, GP, TILE
    )
    alpha = 1.0 - tl.exp(-tl.exp(tl.minimum(raw - 1.0, _CAP)) * length)
    known = tl.load(values + cell, mask=live, other=0.0) * tl.load(decay)
    tl.store(out + i, tl.maximum(known, alpha, propagate_nan=tl.PropagateNan.ALL), mask=live)


@triton.jit(do_not_specialize=["n", "total"])
def put(cells, found, values, n, total, CLEAR: tl.constexpr, BLOCK: tl.constexpr):
    """Set values [total] at cells [n] to the largest found [n] of each cell. found >= 0.

    It takes two launches: the first one (CLEAR) sets the values to 0, the second takes the maximum. A cell may be
    listed more than once. An index of `total` means no cell.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cell = tl.load(cells + i, mask=i < n, other=total)
    if CLEAR:
        tl.store(values + cell, i * 0.0, mask=cell < total)
    else:
        tl.atomic_max(values + cell, tl.load(found + i, mask=cell < total, other=0.0), mask=cell < total, sem="relaxed")


@triton.jit(do_not_specialize=["cells"])
def mark(values, mean, threshold, occupied, extent, cells, RES: tl.constexpr, FIT: tl.constexpr, BLOCK: tl.constexpr):
    """occupied [levels, cells] uint8: 1 where a value exceeds min(mean [levels] of its level, threshold).

    FIT: extent [6] int32 becomes the range of the occupied cells: the first cell along x, y and z, then the last cell
    plus one. It must hold (RES, RES, RES, 0, 0, 0) before.
    """
    level = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < cells
    at = level.to(tl.int64) * cells + i
    limit = tl.minimum(tl.load(mean + level), threshold, propagate_nan=tl.PropagateNan.ALL)
    full = live & (tl.load(values + at, mask=live, other=0.0) > limit)
    tl.store(occupied + at, full.to(tl.uint8), mask=live)
    if FIT:
        x, y, z = i // (RES * RES), i // RES % RES, i % RES
        tl.atomic_min(extent, tl.min(tl.where(full, x, RES)), sem="relaxed")
        tl.atomic_min(extent + 1, tl.min(tl.where(full, y, RES)), sem="relaxed")
        tl.atomic_min(extent + 2, tl.min(tl.where(full, z, RES)), sem="relaxed")
        tl.atomic_max(extent + 3, tl.max(tl.where(full, x + 1, 0)), sem="relaxed")
        tl.atomic_max(extent + 4, tl.max(tl.where(full, y + 1, 0)), sem="relaxed")
        tl.atomic_max(extent + 5, tl.max(tl.where(full, z + 1, 0)), sem="relaxed")


@triton.jit
def fit(extent, low, side, box, RES: tl.constexpr):
    """box [6]: low and high corner of the occupied cells, from the `extent` of `mark`. Resets `extent`.

    low [3]: low corner of the grid. side [3]: size of a cell. If no cell is occupied, box has low above high.
    """
    k = tl.arange(0, 8)
    live = k < 6
    cells = tl.load(extent + k, mask=live, other=0)
    corner = tl.load(low + k % 3) + tl.load(side + k % 3) * cells.to(tl.float32)
    tl.store(box + k, corner, mask=live)
    tl.store(extent + k, tl.where(k < 3, RES, 0), mask=live)

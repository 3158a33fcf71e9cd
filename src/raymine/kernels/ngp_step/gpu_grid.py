"""Visits to the occupancy grid in Triton: the opacity of one step at a random point of each listed cell."""

from __future__ import annotations

import triton
import triton.language as tl

from raymine.kernels.judge.reference import CAP
from raymine.kernels.ngp_step.gpu import _density_of, _place
from raymine.kernels.philox.gpu import uniform, word
from raymine.kernels.philox.op import Stream

_CELL: tl.constexpr = tl.constexpr(int(Stream.OCCUPANCY_CELL))
_OFFSET: tl.constexpr = tl.constexpr(int(Stream.OCCUPANCY_OFFSET))
_CAP: tl.constexpr = tl.constexpr(CAP)


@triton.jit(do_not_specialize=["level", "levels", "n", "half"])
def list_cells(seed, step, level, levels, n_occupied, n, half, cells, wanted, BLOCK: tl.constexpr):
    """cells [half]: every so manieth of n cells from a random start; wanted [half]: ranks among the occupied cells,
    likewise, or one after the other where there are no more than `half`, then n_occupied + 1, which no cell has."""
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
    cells, n, seed, step, level, levels, reach, box, length, out, table, weights, low,
    scales, resolutions, entries, offsets, dense,
    RES: tl.constexpr, ALL: tl.constexpr, L: tl.constexpr, LP: tl.constexpr, F: tl.constexpr, H: tl.constexpr,
    HP: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, MIDDLE: tl.constexpr, UNBOUNDED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """out [n]: opacity of a step of `length` at a random point of cells [n] (ALL: of cell i at place i).

    box [6]: centre and 2 / side of the inner box; reach: 2^level.
    """
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    live = i < n
    cell = i if ALL else tl.load(cells + i, mask=live, other=0).to(tl.int32)
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
    tl.store(out + i, alpha, mask=live)

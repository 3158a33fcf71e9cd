"""Interpolation in a sparse grid in Triton: a tile of points and all columns of a row, as blocks [points, columns]."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from raymine.kernels._triton import power_of_two


@triton.jit
def _cell(points, i, axis: tl.constexpr, inside, side):
    """Cell and fraction [points] along an axis; coordinates are clamped to 0..1, and NaN becomes 0."""
    x = tl.load(points + i * 3 + axis, mask=inside, other=0.0)
    x = tl.minimum(tl.maximum(tl.where(x == x, x, 0.0), 0.0), 1.0)
    at = x * (side - 1).to(tl.float32)
    cell = tl.minimum(at.to(tl.int32), side - 2)
    return cell, at - cell.to(tl.float32)


@triton.jit
def _known(points, i, inside):
    """[points] whether no coordinate is NaN."""
    x = tl.load(points + i * 3, mask=inside, other=0.0)
    y = tl.load(points + i * 3 + 1, mask=inside, other=0.0)
    z = tl.load(points + i * 3 + 2, mask=inside, other=0.0)
    return (x == x) & (y == y) & (z == z)


@triton.jit
def _row(index, a, b, c, side, inside, count, CORNER: tl.constexpr):
    """[points] int32: the row of a corner of each cell, -1 where there is none; bit 0 of CORNER is x.

    count: rows of the table.
    """
    place = ((a + (CORNER & 1)) * side + b + (CORNER >> 1 & 1)) * side + c + (CORNER >> 2)
    row = tl.load(index + place, mask=inside, other=-1)
    return tl.where(row < count, row, -1)


@triton.jit
def _weight(fx, fy, fz, CORNER: tl.constexpr):
    wx = fx if CORNER & 1 else 1 - fx
    wy = fy if CORNER >> 1 & 1 else 1 - fy
    wz = fz if CORNER >> 2 else 1 - fz
    return wx, wy, wz


@triton.jit(do_not_specialize=["n", "count", "missing"])
def _interpolate(
    points, index, sides, table, out, missing, n, count, C: tl.constexpr, CP: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    i = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    inside, column = i < n, tl.arange(0, CP)[None, :]
    live, side = inside[:, None] & (column < C), tl.load(sides)
    a, fx = _cell(points, i, 0, inside, side)
    b, fy = _cell(points, i, 1, inside, side)
    c, fz = _cell(points, i, 2, inside, side)
    found = tl.zeros([TILE, CP], tl.float32)
    for corner in tl.static_range(8):
        row = _row(index, a, b, c, side, inside, count, corner)
        wx, wy, wz = _weight(fx, fy, fz, corner)
        place = table + row.to(tl.int64)[:, None] * C + column
        there = (row >= 0)[:, None]
        value = tl.where(there, tl.load(place, mask=live & there, other=0.0), missing)
        found += (wx * wy * wz)[:, None] * value
    found = tl.where(_known(points, i, inside)[:, None], found, float("nan"))
    tl.store(out + i[:, None] * C + column, found, mask=live)


@triton.jit(do_not_specialize=["n", "count"])
def _table_gradient(
    points, index, sides, grad, out, n, count, C: tl.constexpr, CP: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Adds the gradient of the table to `out`."""
    i = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    inside, column = i < n, tl.arange(0, CP)[None, :]
    live, side = (inside & _known(points, i, inside))[:, None] & (column < C), tl.load(sides)
    a, fx = _cell(points, i, 0, inside, side)
    b, fy = _cell(points, i, 1, inside, side)
    c, fz = _cell(points, i, 2, inside, side)
    g = tl.load(grad + i[:, None] * C + column, mask=live, other=0.0)
    for corner in tl.static_range(8):
        row = _row(index, a, b, c, side, inside, count, corner)
        wx, wy, wz = _weight(fx, fy, fz, corner)
        place = out + row.to(tl.int64)[:, None] * C + column
        # A sample of weight 0 has the gradient 0; skipping its additions saves most of the traffic of unused places.
        tl.atomic_add(place, (wx * wy * wz)[:, None] * g, mask=live & (row >= 0)[:, None] & (g != 0), sem="relaxed")


@triton.jit(do_not_specialize=["n", "count", "missing"])
def _position_gradient(
    points, index, sides, table, grad, out, missing, n, count, C: tl.constexpr, CP: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    i = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    inside, column = i < n, tl.arange(0, CP)[None, :]
    live, side = inside[:, None] & (column < C), tl.load(sides)
    a, fx = _cell(points, i, 0, inside, side)
    b, fy = _cell(points, i, 1, inside, side)
    c, fz = _cell(points, i, 2, inside, side)
    g = tl.load(grad + i[:, None] * C + column, mask=live, other=0.0)
    dx, dy, dz = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
    for corner in tl.static_range(8):
        row = _row(index, a, b, c, side, inside, count, corner)
        wx, wy, wz = _weight(fx, fy, fz, corner)
        place = table + row.to(tl.int64)[:, None] * C + column
        there = (row >= 0)[:, None]
        value = tl.sum(tl.where(there, tl.load(place, mask=live & there, other=0.0), missing) * g, 1)
        dx += wy * wz * (value if corner & 1 else -value)
        dy += wx * wz * (value if corner >> 1 & 1 else -value)
        dz += wx * wy * (value if corner >> 2 else -value)
    cells = (side - 1).to(tl.float32)
    tl.store(out + i * 3, dx * cells, mask=inside)
    tl.store(out + i * 3 + 1, dy * cells, mask=inside)
    tl.store(out + i * 3 + 2, dz * cells, mask=inside)


def _shape(columns: int) -> dict[str, int]:
    size = power_of_two(columns)
    return {"C": columns, "CP": size, "TILE": min(256, max(16, 1024 // size))}


def interpolate(positions: Tensor, index: Tensor, side: Tensor, table: Tensor, missing: float) -> Tensor:
    """As `reference.interpolate`, without a graph; coordinates are clamped, and NaN gives NaN."""
    n, shape = positions.shape[0], _shape(table.shape[1])
    out = torch.empty(n, table.shape[1], device=table.device)
    if n:
        points = positions.detach().contiguous()
        grid = (triton.cdiv(n, shape["TILE"]),)
        _interpolate[grid](points, index, side, table.contiguous(), out, float(missing), n, len(table), **shape)
    return out


def table_gradient(positions: Tensor, index: Tensor, side: Tensor, table: Tensor, grad: Tensor) -> Tensor:
    """The gradient of the table [rows, C], dense.

    It uses atomic additions. Their order, and so the last bits of the sums, may differ from run to run.
    """
    n, shape = positions.shape[0], _shape(table.shape[1])
    out = torch.zeros(table.shape, device=table.device)
    if n:
        points = positions.detach().contiguous()
        grid = (triton.cdiv(n, shape["TILE"]),)
        _table_gradient[grid](points, index, side, grad.contiguous(), out, n, len(table), **shape)
    return out


def position_gradient(
    positions: Tensor, index: Tensor, side: Tensor, table: Tensor, missing: float, grad: Tensor
) -> Tensor:
    """The gradient of the positions [n, 3]; 0 where a coordinate was clamped, and for a point with NaN."""
    n, shape = positions.shape[0], _shape(table.shape[1])
    out = torch.empty(n, 3, device=table.device)
    if n:
        points = positions.detach().contiguous()
        grid = (triton.cdiv(n, shape["TILE"]),)
        tables = index, side, table.contiguous(), grad.contiguous()
        _position_gradient[grid](points, *tables, out, float(missing), n, len(table), **shape)
    kept = (positions >= 0) & (positions <= 1) & ~positions.isnan().any(-1, keepdim=True)
    return torch.where(kept, out, 0.0)

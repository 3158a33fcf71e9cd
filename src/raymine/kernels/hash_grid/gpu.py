"""The hash grid encoding in Triton: a tile of points on all levels at once, as blocks [points, levels, features].

The number of levels is padded to a power of two. The parameters of the levels are in five small arrays (`Levels`), so
one kernel serves dense and hashed levels.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from raymine.kernels._triton import power_of_two
from raymine.kernels.hash_grid.spec import GridSpec


class Levels(NamedTuple):
    """scales [L] float32; resolutions, entries, offsets, dense [L] int32, all on one device."""

    scales: Tensor
    resolutions: Tensor
    entries: Tensor
    offsets: Tensor
    dense: Tensor


@cache
def levels_of(spec: GridSpec, device: torch.device) -> Levels:
    """The arrays that describe the levels of a grid, on `device`."""
    scales = torch.from_numpy(spec.scales).to(device=device, dtype=torch.float32)
    whole = (spec.resolutions, spec.entries, spec.offsets, spec.dense)
    return Levels(scales, *(torch.from_numpy(part.astype("int32")).to(device) for part in whole))


def padded_levels(spec: GridSpec) -> int:
    """LP of the fused kernels: a power of two, at least `levels`. LP * F is at least 16, as `tl.dot` requires."""
    return power_of_two(spec.levels, 16 // spec.features)


@triton.jit
def cells(x, y, z, scales, resolutions, entries, offsets, dense, L: tl.constexpr, LP: tl.constexpr):
    """x, y, z [n] in 0..1 -> per axis the low vertex and the fraction in its cell, [n, LP], on every level.

    Also returns resolution, entries, offset and dense of the levels, [1, LP].
    """
    level = tl.arange(0, LP)
    live = level < L
    scale = tl.load(scales + level, mask=live, other=0.0)[None, :]
    res = tl.load(resolutions + level, mask=live, other=1)[None, :]
    size = tl.load(entries + level, mask=live, other=1)[None, :]
    offset = tl.load(offsets + level, mask=live, other=0)[None, :]
    is_dense = tl.load(dense + level, mask=live, other=1)[None, :] != 0
    ux, uy, uz = x[:, None] * scale + 0.5, y[:, None] * scale + 0.5, z[:, None] * scale + 0.5
    cx, cy, cz = ux.to(tl.int32), uy.to(tl.int32), uz.to(tl.int32)
    return cx, cy, cz, ux - cx, uy - cy, uz - cz, res, size, offset, is_dense


@triton.jit
def corner(cx, cy, cz, fx, fy, fz, res, size, offset, is_dense, C: tl.constexpr):
    """Row in the table and trilinear weight of vertex C of a cell, [n, LP]. Bits 0, 1, 2 of C: x, y, z."""
    x, y, z = (cx + (C & 1)).to(tl.uint32), (cy + (C >> 1 & 1)).to(tl.uint32), (cz + (C >> 2)).to(tl.uint32)
    side, entries = res.to(tl.uint32), size.to(tl.uint32)
    hashed = (x ^ (y * 2654435761) ^ (z * 805459861)) & (entries - 1)
    straight = x + side * (y + side * z)
    # A dense index may exceed the entries of its level, but it is below twice their number: subtract once.
    straight = tl.where(straight >= entries, straight - entries, straight)
    row = tl.where(is_dense, straight, hashed).to(tl.int32) + offset
    wx = fx if C & 1 else 1 - fx
    wy = fy if C >> 1 & 1 else 1 - fy
    wz = fz if C >> 2 else 1 - fz
    return row, wx * wy * wz


@triton.jit
def interpolate(
    table, cx, cy, cz, fx, fy, fz, res, size, offset, is_dense,
    N: tl.constexpr, L: tl.constexpr, LP: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """Trilinear interpolation in a table [rows, F] of any float type -> [N, LP, F] float32; 0 on padded levels."""
    feature = tl.arange(0, F)
    live = (tl.arange(0, LP) < L)[None, :, None]
    out = tl.zeros([N, LP, F], tl.float32)
    for c in tl.static_range(8):
        row, weight = corner(cx, cy, cz, fx, fy, fz, res, size, offset, is_dense, c)
        place = table + row[:, :, None] * F + feature[None, None, :]
        value = tl.load(place) if L == LP else tl.load(place, mask=live, other=0.0)
        out += weight[:, :, None] * value.to(tl.float32)
    return out


@triton.jit(do_not_specialize=["n"])
def _encode(
    positions, table, scales, resolutions, entries, offsets, dense, out, n,
    L: tl.constexpr, LP: tl.constexpr, F: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = i < n
    x, y, z, known = _load_points(positions, i, inside)
    cx, cy, cz, fx, fy, fz, res, size, offset, is_dense = cells(
        x, y, z, scales, resolutions, entries, offsets, dense, L, LP
    )
    found = interpolate(table, cx, cy, cz, fx, fy, fz, res, size, offset, is_dense, TILE, L, LP, F)
    found = tl.where(known[:, None, None], found, float("nan"))
    place, live = _places(i, inside, L, LP, F)
    tl.store(out + place, found.to(out.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["n"])
def _table_gradient(
    positions, grad, scales, resolutions, entries, offsets, dense, out, n,
    L: tl.constexpr, LP: tl.constexpr, F: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Adds the gradient of the table to out [rows, F]."""
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = i < n
    x, y, z, known = _load_points(positions, i, inside)
    cx, cy, cz, fx, fy, fz, res, size, offset, is_dense = cells(
        x, y, z, scales, resolutions, entries, offsets, dense, L, LP
    )
    place, live = _places(i, inside & known, L, LP, F)
    g = tl.load(grad + place, mask=live, other=0.0).to(tl.float32)
    for c in tl.static_range(8):
        row, weight = corner(cx, cy, cz, fx, fy, fz, res, size, offset, is_dense, c)
        entry = out + row[:, :, None] * F + tl.arange(0, F)[None, None, :]
        tl.atomic_add(entry, weight[:, :, None] * g, mask=live, sem="relaxed")


@triton.jit(do_not_specialize=["n"])
def _position_gradient(
    positions, table, grad, scales, resolutions, entries, offsets, dense, out, n,
    L: tl.constexpr, LP: tl.constexpr, F: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """out [n, 3]: gradient of the positions.

    Along an axis, it is the difference between the vertices on the two sides of the cell. It is 0 along an axis on
    which the point was clamped, and for a point with NaN.
    """
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = i < n
    x, y, z, known = _load_points(positions, i, inside)
    cx, cy, cz, fx, fy, fz, res, size, offset, is_dense = cells(
        x, y, z, scales, resolutions, entries, offsets, dense, L, LP
    )
    place, live = _places(i, inside & known, L, LP, F)
    g = tl.load(grad + place, mask=live, other=0.0).to(tl.float32)
    dx = tl.zeros([TILE, LP], tl.float32)
    dy = tl.zeros([TILE, LP], tl.float32)
    dz = tl.zeros([TILE, LP], tl.float32)
    for c in tl.static_range(8):
        row, _ = corner(cx, cy, cz, fx, fy, fz, res, size, offset, is_dense, c)
        entry = table + row[:, :, None] * F + tl.arange(0, F)[None, None, :]
        value = tl.sum(tl.load(entry, mask=live, other=0.0).to(tl.float32) * g, 2)
        wx = fx if c & 1 else 1 - fx
        wy = fy if c >> 1 & 1 else 1 - fy
        wz = fz if c >> 2 else 1 - fz
        dx += wy * wz * (value if c & 1 else -value)
        dy += wx * wz * (value if c >> 1 & 1 else -value)
        dz += wx * wy * (value if c >> 2 else -value)
    level = tl.arange(0, LP)
    scale = tl.load(scales + level, mask=level < L, other=0.0)[None, :]
    _put_slope(out + i * 3, positions + i * 3, tl.sum(dx * scale, 1), inside)
    _put_slope(out + i * 3 + 1, positions + i * 3 + 1, tl.sum(dy * scale, 1), inside)
    _put_slope(out + i * 3 + 2, positions + i * 3 + 2, tl.sum(dz * scale, 1), inside)


@triton.jit
def _put_slope(out, position, slope, inside):
    """Stores `slope`, or 0 where the coordinate was clamped to 0..1."""
    at = tl.load(position, mask=inside, other=0.0)
    tl.store(out, tl.where((at >= 0) & (at <= 1), slope, 0.0), mask=inside)


@triton.jit
def _inside(x):
    """Clamped to 0..1."""
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _load_points(positions, i, inside):
    """Coordinates x, y, z of points i, clamped to 0..1, and whether none of them is NaN. A point with NaN becomes 0."""
    x = tl.load(positions + i * 3, mask=inside, other=0.0)
    y = tl.load(positions + i * 3 + 1, mask=inside, other=0.0)
    z = tl.load(positions + i * 3 + 2, mask=inside, other=0.0)
    known = (x == x) & (y == y) & (z == z)
    x, y, z = tl.where(known, x, 0.0), tl.where(known, y, 0.0), tl.where(known, z, 0.0)
    return _inside(x), _inside(y), _inside(z), known


@triton.jit
def _places(i, inside, L: tl.constexpr, LP: tl.constexpr, F: tl.constexpr):
    """Offsets [points, LP, F] of the encodings of points i in an array [n, L * F], and the mask of valid elements."""
    level, feature = tl.arange(0, LP), tl.arange(0, F)
    place = i[:, None, None] * (L * F) + level[None, :, None] * F + feature[None, None, :]
    return place, inside[:, None, None] & (level < L)[None, :, None] & (feature >= 0)[None, None, :]


def encode(positions: Tensor, table: Tensor, spec: GridSpec, kind: torch.dtype | None = None) -> Tensor:
    """As `reference.encode`, after clamping positions to 0..1. A point with NaN gives NaN.

    kind: type of the result; None: that of the table.
    """
    out = torch.empty(len(positions), spec.width, dtype=kind or table.dtype, device=table.device)
    _launch(_encode, spec, positions, (table.contiguous(),), out)
    return out


def table_gradient(positions: Tensor, grad: Tensor, spec: GridSpec) -> Tensor:
    """positions [n, 3], gradient of the encoding [n, L * F] -> gradient of the table [entries, F] float32.

    It uses atomic additions. Their order, and so the last bits of the sums, may differ from run to run.
    """
    out = torch.zeros(spec.total_entries, spec.features, device=grad.device)
    _launch(_table_gradient, spec, positions, (grad.contiguous(),), out)
    return out


def position_gradient(positions: Tensor, table: Tensor, grad: Tensor, spec: GridSpec) -> Tensor:
    """positions [n, 3], table, gradient of the encoding [n, L * F] -> gradient of the positions [n, 3] float32."""
    out = torch.empty(len(positions), 3, device=grad.device)
    _launch(_position_gradient, spec, positions, (table.contiguous(), grad.contiguous()), out)
    return out


def _launch(kernel: Any, spec: GridSpec, positions: Tensor, inputs: tuple[Tensor, ...], out: Tensor) -> None:
    n, tile = len(positions), 64
    if n == 0:
        return
    shape = {"L": spec.levels, "LP": power_of_two(spec.levels), "F": spec.features, "TILE": tile}
    levels = levels_of(spec, out.device)
    kernel[(triton.cdiv(n, tile),)](positions.detach().contiguous().float(), *inputs, *levels, out, n, **shape)

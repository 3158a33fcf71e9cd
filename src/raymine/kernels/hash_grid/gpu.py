"""The hash grid encoding in Triton: all levels of a tile of points at once, as [points, levels, features].

`levels` is padded to a power of two. A level's numbers come from five small arrays (`Levels`), so that the choice
between dense and hashed indexing is data, not code.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

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
    """The arrays that describe the levels of a grid."""
    scales = torch.from_numpy(spec.scales).to(device=device, dtype=torch.float32)
    whole = (spec.resolutions, spec.entries, spec.offsets, spec.dense)
    return Levels(scales, *(torch.from_numpy(part.astype("int32")).to(device) for part in whole))


def padded_levels(spec: GridSpec) -> int:
    """Levels of a tile: a power of two, and enough for an encoding of 16 numbers, which a matrix product needs."""
    return power_of_two(spec.levels, 16 // spec.features)


@triton.jit
def cells(x, y, z, scales, resolutions, entries, offsets, dense, L: tl.constexpr, LP: tl.constexpr):
    """Of points x, y, z [n] in 0..1: integer vertex and fraction on every level, [n, LP], and the levels' numbers."""
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
    """Row in the table and weight of vertex C of 8 (bit 0: x, 1: y, 2: z), [n, LP]."""
    x, y, z = (cx + (C & 1)).to(tl.uint32), (cy + (C >> 1 & 1)).to(tl.uint32), (cz + (C >> 2)).to(tl.uint32)
    side, entries = res.to(tl.uint32), size.to(tl.uint32)
    hashed = (x ^ (y * 2654435761) ^ (z * 805459861)) & (entries - 1)
    straight = x + side * (y + side * z)
    # Both wrap into the level's entries; a vertex of a dense level is beyond them by less than their number.
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
    """[N, LP, F] float32 from a table [rows, F] of any float type; 0 on the padded levels."""
    feature = tl.arange(0, F)
    live = (tl.arange(0, LP) < L)[None, :, None]
    out = tl.zeros([N, LP, F], tl.float32)
    for c in tl.static_range(8):
        row, weight = corner(cx, cy, cz, fx, fy, fz, res, size, offset, is_dense, c)
        place = table + row[:, :, None] * F + feature[None, None, :]
        value = tl.load(place) if L == LP else tl.load(place, mask=live, other=0.0)
        out += weight[:, :, None] * value.to(tl.float32)
    return out

"""Features from planes in Triton: a tile of points and all features of a vertex, as blocks [points, features].

A corner is one read of neighbouring addresses. Products stay in registers: what goes to memory is the result alone. The
backward pass computes the factors again, since reading their corners costs no more than reading stored values.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from raymine.kernels._triton import power_of_two


@triton.jit
def _along(x, size):
    """Cell, next vertex and fraction of x [points] in 0..1 on an axis of `size` vertices."""
    at = x * (size - 1).to(tl.float32)
    cell = tl.minimum(at.to(tl.int32), tl.maximum(size - 2, 0))
    return cell, tl.minimum(cell + 1, size - 1), at - cell.to(tl.float32)


@triton.jit
def _coordinate(points, i, axis, inside, D: tl.constexpr):
    """Coordinate [points] clamped to 0..1; NaN becomes 0, and so does an axis that points do not have."""
    x = tl.load(points + i * D + axis, mask=inside & (axis < D), other=0.0)
    x = tl.where(x == x, x, 0.0)
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _cells(points, i, inside, J: tl.constexpr, width, height, D: tl.constexpr):
    """First entries of the four vertices around points in the table of factor J, and both fractions, all [points]."""
    if J < 3:
        u = _coordinate(points, i, 1 if J == 0 else 0, inside, D)
        v = _coordinate(points, i, 1 if J == 2 else 2, inside, D)
        columns = width
    else:
        u = _coordinate(points, i, J - 3, inside, D)
        v = _coordinate(points, i, 3, inside, D)
        columns = height
    a, b, fa = _along(u, width)
    c, d, fb = _along(v, columns)
    low = (J % 3) * width * columns + a * columns
    high = (J % 3) * width * columns + b * columns
    return low + c, low + d, high + c, high + d, fa, fb


@triton.jit
def _vertex(table, row, live, C: tl.constexpr, CP: tl.constexpr):
    """[points, CP] features of a vertex of each point."""
    return tl.load(table + row[:, None] * C + tl.arange(0, CP)[None, :], mask=live, other=0.0)


@triton.jit
def _factor(
    points, table, i, inside, live, width, height,
    J: tl.constexpr, D: tl.constexpr, C: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """[points, CP]: factor J at the points."""
    r00, r01, r10, r11, fa, fb = _cells(points, i, inside, J, width, height, D)
    fa, fb = fa[:, None], fb[:, None]
    found = (1 - fa) * (1 - fb) * _vertex(table, r00, live, C, CP)
    found += (1 - fa) * fb * _vertex(table, r01, live, C, CP)
    found += fa * (1 - fb) * _vertex(table, r10, live, C, CP)
    return found + fa * fb * _vertex(table, r11, live, C, CP)


@triton.jit
def _known(points, i, inside, D: tl.constexpr):
    """[points] whether no coordinate is NaN."""
    known = i >= 0
    for axis in tl.static_range(D):
        x = tl.load(points + i * D + axis, mask=inside, other=0.0)
        known = known & (x == x)
    return known


@triton.jit(do_not_specialize=["n", "width", "height"])
def _features(
    points, planes, second, out, n, width, height,
    D: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, FACTORS: tl.constexpr, SEPARATE: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    i = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    inside = i < n
    column = tl.arange(0, CP)[None, :]
    live = inside[:, None] & (column < C)
    known = _known(points, i, inside, D)[:, None]
    product = tl.full([TILE, CP], 1.0, tl.float32)
    for j in tl.static_range(3):
        value = _factor(points, planes, i, inside, live, width, height, j, D, C, CP)
        if FACTORS == 6:
            value *= _factor(points, second, i, inside, live, width, height, j + 3, D, C, CP)
        if SEPARATE:
            place = out + i[:, None] * (3 * C) + j * C + column
            tl.store(place, tl.where(known, value, float("nan")), mask=live)
        else:
            product *= value
    if not SEPARATE:
        tl.store(out + i[:, None] * C + column, tl.where(known, product, float("nan")), mask=live)


@triton.jit
def _rest(
    grad, i, live, v0, v1, v2, v3, v4, v5,
    J: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, FACTORS: tl.constexpr, SEPARATE: tl.constexpr,
):  # fmt: skip
    """[points, CP]: the gradient of factor J, that of the result times the other factors v0 .. v5."""
    if SEPARATE:
        column = i[:, None] * (3 * C) + (J % 3) * C + tl.arange(0, CP)[None, :]
    else:
        column = i[:, None] * C + tl.arange(0, CP)[None, :]
    found = tl.load(grad + column, mask=live, other=0.0)
    # With `separate`, factors 0 and 3, 1 and 4, 2 and 5 belong together.
    if J != 0 and (not SEPARATE or J == 3):
        found *= v0
    if J != 1 and (not SEPARATE or J == 4):
        found *= v1
    if J != 2 and (not SEPARATE or J == 5):
        found *= v2
    if FACTORS == 6:
        if J != 3 and (not SEPARATE or J == 0):
            found *= v3
        if J != 4 and (not SEPARATE or J == 1):
            found *= v4
        if J != 5 and (not SEPARATE or J == 2):
            found *= v5
    return found


@triton.jit
def _spread(table, row, value, live, C: tl.constexpr, CP: tl.constexpr):
    # Unused places of a captured step all repeat one point with the gradient 0: adding it would queue at its vertices.
    place = table + row[:, None] * C + tl.arange(0, CP)[None, :]
    tl.atomic_add(place, value, mask=live & (value != 0), sem="relaxed")


@triton.jit(do_not_specialize=["n", "width", "height"])
def _gradients(
    points, planes, second, grad, to_planes, to_second, moved, n, width, height,
    D: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, FACTORS: tl.constexpr, SEPARATE: tl.constexpr,
    MOVED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Adds the gradients of the vertices to `to_planes` and `to_second`, and those of the points to moved [n, 4]."""
    i = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    inside = i < n
    known = _known(points, i, inside, D)
    live = (inside & known)[:, None] & (tl.arange(0, CP)[None, :] < C)
    v0 = _factor(points, planes, i, inside, live, width, height, 0, D, C, CP)
    v1 = _factor(points, planes, i, inside, live, width, height, 1, D, C, CP)
    v2 = _factor(points, planes, i, inside, live, width, height, 2, D, C, CP)
    v3, v4, v5 = v0, v1, v2
    if FACTORS == 6:
        v3 = _factor(points, second, i, inside, live, width, height, 3, D, C, CP)
        v4 = _factor(points, second, i, inside, live, width, height, 4, D, C, CP)
        v5 = _factor(points, second, i, inside, live, width, height, 5, D, C, CP)
    for j in tl.static_range(FACTORS):
        g = _rest(grad, i, live, v0, v1, v2, v3, v4, v5, j, C, CP, FACTORS, SEPARATE)
        r00, r01, r10, r11, fa, fb = _cells(points, i, inside, j, width, height, D)
        wa, wb = fa[:, None], fb[:, None]
        if j < 3:
            table, out = planes, to_planes
        else:
            table, out = second, to_second
        _spread(out, r00, g * (1 - wa) * (1 - wb), live, C, CP)
        _spread(out, r01, g * (1 - wa) * wb, live, C, CP)
        _spread(out, r10, g * wa * (1 - wb), live, C, CP)
        _spread(out, r11, g * wa * wb, live, C, CP)
        if MOVED:
            c00, c01 = _vertex(table, r00, live, C, CP), _vertex(table, r01, live, C, CP)
            c10, c11 = _vertex(table, r10, live, C, CP), _vertex(table, r11, live, C, CP)
            along_a = tl.sum(g * ((1 - wb) * (c10 - c00) + wb * (c11 - c01)), 1) * (width - 1).to(tl.float32)
            along_b = tl.sum(g * ((1 - wa) * (c01 - c00) + wa * (c11 - c10)), 1)
            if j < 3:
                # One program has all factors of a point, so this needs no atomics; they keep the code short.
                tl.atomic_add(moved + i * 4 + (1 if j == 0 else 0), along_a, mask=inside & known)
                other = along_b * (width - 1).to(tl.float32)
                tl.atomic_add(moved + i * 4 + (1 if j == 2 else 2), other, mask=inside & known)
            else:
                tl.atomic_add(moved + i * 4 + (j - 3), along_a, mask=inside & known)
                tl.atomic_add(moved + i * 4 + 3, along_b * (height - 1).to(tl.float32), mask=inside & known)


def _shape(positions: Tensor, planes: Tensor, second: Tensor | None, separate: bool) -> dict[str, int | bool]:
    size = power_of_two(planes.shape[3])
    return {
        "D": positions.shape[1], "C": planes.shape[3], "CP": size, "FACTORS": 3 if second is None else 6,
        "SEPARATE": separate, "TILE": max(8, 1024 // size),
    }  # fmt: skip


def features(positions: Tensor, planes: Tensor, second: Tensor | None, separate: bool) -> Tensor:
    """As `reference.features`, without a graph; coordinates are clamped, and NaN gives NaN."""
    n, size = positions.shape[0], planes.shape[3]
    out = torch.empty(n, 3 * size if separate else size, device=planes.device)
    if n:
        other = (planes if second is None else second).contiguous()
        shape = _shape(positions, planes, second, separate)
        tables = positions.detach().contiguous(), planes.contiguous(), other
        _features[(triton.cdiv(n, shape["TILE"]),)](*tables, out, n, planes.shape[1], other.shape[2], **shape)
    return out


def gradients(
    positions: Tensor, planes: Tensor, second: Tensor | None, separate: bool, grad: Tensor, *, with_positions: bool
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Gradients of positions, if wanted, of planes, and of second factors, if there are any; NaN points have none.

    It uses atomic additions. Their order, and so the last bits of the sums, may differ from run to run.
    """
    n = positions.shape[0]
    to_planes = torch.zeros(planes.shape, device=planes.device)
    to_second = None if second is None else torch.zeros(second.shape, device=planes.device)
    moved = torch.zeros(n if with_positions else 1, 4, device=planes.device)
    if n:
        other = (planes if second is None else second).contiguous()
        shape = _shape(positions, planes, second, separate)
        _gradients[(triton.cdiv(n, shape["TILE"]),)](
            positions.detach().contiguous(), planes.contiguous(), other, grad.contiguous(), to_planes,
            to_planes if to_second is None else to_second, moved, n, planes.shape[1], other.shape[2],
            MOVED=with_positions, **shape,
        )  # fmt: skip
    if not with_positions:
        return None, to_planes, to_second
    clamped = (positions < 0) | (positions > 1)
    return moved[:, : positions.shape[1]].masked_fill(clamped, 0.0), to_planes, to_second

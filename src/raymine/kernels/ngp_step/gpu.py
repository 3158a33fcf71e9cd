"""The hash-grid field in Triton: one kernel takes a tile of samples through the encoding and the networks, and back.

Matrix products have float16 operands and float32 sums. No activation is written to memory. `train` recomputes the
forward of the chosen samples. The gradients of their outputs are already known by then, so it continues with the
backward while everything is in registers, and adds to the gradients of the layers and of the table.

The shape of a model is a compile-time constant (`Shape`). All layers lie one after another in one float16 array without
padding: density layers, then colour layers, each [inputs, outputs]. Masked loads pad them to powers of two.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from raymine.errors import ConfigError
from raymine.kernels._triton import power_of_two
from raymine.kernels.activations import CAP
from raymine.kernels.hash_grid.gpu import cells, corner, interpolate, padded_levels
from raymine.kernels.hash_grid.spec import GridSpec
from raymine.kernels.ngp_step.inputs import WIDTH


class Way(NamedTuple):
    """A variant of `train`. TILE: samples per tile. HELD: whether it keeps the layers in shared memory."""

    TILE: int
    HELD: bool


WAYS = (Way(128, True), Way(64, True), Way(64, False), Way(32, False))
"""Variants of `train`, the fastest first; each needs less shared memory than the one before. No variant prefetches the
next tile: that would double the shared memory, and what is left of it serves as a cache for the table."""


def ways_on(capability: int, wide: bool) -> tuple[Way, ...]:
    """The variants of `train` that work on GPUs of a major compute capability.

    wide: whether the networks are wider than 64; these need 8 warps anyway, and only they use tiles of 128 samples.
    From Hopper on, matrix products of 64 rows address shared memory by descriptors. If the layers are not held, ptxas
    12.8 computes some descriptors from registers that were never set, so these variants are left out there.
    """
    fitting = (way for way in WAYS if wide or way.TILE < 128)
    return tuple(way for way in fitting if way.HELD or way.TILE < 64 or capability < 9)


_SH: tl.constexpr = tl.constexpr(WIDTH)
_CAP: tl.constexpr = tl.constexpr(CAP)
_MOST: tl.constexpr = tl.constexpr(65504.0)


class Shape(NamedTuple):
    """Compile-time shape of a model.

    L, LP, F: levels, padded levels and features of the grid. H, HP: hidden width and its padded value. G, GP: outputs
    of the density network (the inputs of the colour network besides the direction) and their padded number.
    MIDDLE: hidden layers of the colour network beyond the first. UNBOUNDED: whether space is contracted.
    """

    L: int
    LP: int
    F: int
    H: int
    HP: int
    G: int
    GP: int
    MIDDLE: int
    UNBOUNDED: bool

    @property
    def weights(self) -> int:
        """Number of weights of all layers."""
        width = self.L * self.F
        return width * self.H + self.H * self.G + (self.G + WIDTH) * self.H + self.MIDDLE * self.H * self.H + self.H * 3


def shape_of(spec: GridSpec, width: int, geometry: int, colour_layers: int, unbounded: bool) -> Shape:
    """The `Shape` of a model. ConfigError if the fused kernels do not support it."""
    if width > 128 or geometry > 64 or not 1 <= colour_layers <= 3:
        raise ConfigError(
            "the fused kernels take networks up to 128 wide, 64 numbers for colour and 1 to 3 colour layers; "
            f"got {width}, {geometry} and {colour_layers}."
        )
    if spec.total_entries * spec.features >= 1 << 31:
        raise ConfigError("the fused kernels take tables of fewer than 2^31 numbers.")
    return Shape(
        spec.levels,
        padded_levels(spec),
        spec.features,
        width,
        power_of_two(width, 16),
        geometry,
        power_of_two(geometry, 16),
        colour_layers - 1,
        unbounded,
    )


@triton.jit
def _layer(weights, I: tl.constexpr, O: tl.constexpr, IP: tl.constexpr, OP: tl.constexpr):
    """Loads a layer [I, O] as a block [IP, OP], padded with zeros."""
    i, o = tl.arange(0, IP), tl.arange(0, OP)
    place = weights + i[:, None] * O + o[None, :]
    return tl.load(place, mask=(i[:, None] < I) & (o[None, :] < O), other=0.0)


@triton.jit
def _held(layer, weights, I: tl.constexpr, O: tl.constexpr, IP: tl.constexpr, OP: tl.constexpr, HELD: tl.constexpr):
    """`layer` if HELD; otherwise loads the layer from memory."""
    if HELD:
        found = layer
    else:
        found = _layer(weights, I, O, IP, OP)
    return found


@triton.jit
def _add_layer(out, grad, I: tl.constexpr, O: tl.constexpr, IP: tl.constexpr, OP: tl.constexpr):
    """out [I, O] += the first I rows and O columns of grad [IP, OP].

    Only one program adds to `out`, so the order of the sum is fixed.
    """
    i, o = tl.arange(0, IP), tl.arange(0, OP)
    tl.atomic_add(out + i[:, None] * O + o[None, :], grad, mask=(i[:, None] < I) & (o[None, :] < O), sem="relaxed")


@triton.jit
def _place(x, y, z, low, UNBOUNDED: tl.constexpr):
    """`inputs.to_unit_cube`, clamped to 0..1. low [6]: low corner, then high corner of the inner box."""
    lx, ly, lz = tl.load(low), tl.load(low + 1), tl.load(low + 2)
    hx, hy, hz = tl.load(low + 3), tl.load(low + 4), tl.load(low + 5)
    a, b, c = (x - lx) / (hx - lx), (y - ly) / (hy - ly), (z - lz) / (hz - lz)
    if UNBOUNDED:
        a, b, c = 2 * a - 1, 2 * b - 1, 2 * c - 1
        norm = tl.maximum(tl.maximum(tl.abs(a), tl.abs(b)), tl.maximum(tl.abs(c), 1.0))
        squash = (2.0 - 1.0 / norm) / norm * 0.25
        a, b, c = a * squash + 0.5, b * squash + 0.5, c * squash + 0.5
    a, b = tl.minimum(tl.maximum(a, 0.0), 1.0), tl.minimum(tl.maximum(b, 0.0), 1.0)
    return a, b, tl.minimum(tl.maximum(c, 0.0), 1.0)


@triton.jit
def _along(rays, ray, t, live, low, UNBOUNDED: tl.constexpr):
    """Unit-cube coordinates of the points at distance t on rows `ray` of rays [R, 8]."""
    row = rays + ray * 8
    x = tl.load(row, mask=live, other=0.0) + t * tl.load(row + 3, mask=live, other=0.0)
    y = tl.load(row + 1, mask=live, other=0.0) + t * tl.load(row + 4, mask=live, other=0.0)
    z = tl.load(row + 2, mask=live, other=0.0) + t * tl.load(row + 5, mask=live, other=0.0)
    return _place(x, y, z, low, UNBOUNDED)


@triton.jit
def _relu(x):
    """max(x, 0) as float16, clamped to the largest finite float16. Infinity would become NaN in the next layer.

    The clamp comes after the conversion: float16 instructions process two numbers at once, and fewer registers spill.
    """
    most = tl.full([], _MOST, tl.float16)
    return tl.minimum(tl.maximum(x.to(tl.float16), most * 0), most)


@triton.jit
def _half(x):
    """x as float16, clamped to the finite range on both sides."""
    most = tl.full([], _MOST, tl.float16)
    return tl.minimum(tl.maximum(x.to(tl.float16), -most), most)


@triton.jit
def _column0(matrix, GP: tl.constexpr):
    """Column 0 of a block [n, GP]."""
    return tl.sum(tl.where(tl.arange(0, GP)[None, :] == 0, matrix, 0.0), 1)


@triton.jit
def infer(
    rays, harmonics, first, count, hitting, n_hitting, t_start, t_end, table, weights, low,
    scales, resolutions, entries, offsets, dense, most_optical, queue, seen, out,
    L: tl.constexpr, LP: tl.constexpr, F: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, G: tl.constexpr,
    GP: tl.constexpr, MIDDLE: tl.constexpr, UNBOUNDED: tl.constexpr, SLOTS: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """out [B, 4]: colour and density pre-activations at the midpoints of samples. harmonics [R, 16] float16.

    A program processes SLOTS rays of the list `hitting` at a time, STRIDE samples of each per round. When a ray ends or
    its optical depth exceeds `most_optical`, its slot takes the next ray of the list. queue [1] counts the rays taken
    so far, and must be 0 at the start. The result of a ray does not depend on the other rays of the program, and so not
    on the order in which programs take rays.

    seen [R], for the rays of `hitting`: how many samples, from the first, were computed. `out` is not written for the
    others, which lie behind an optical depth of `most_optical`.
    """
    n = tl.load(n_hitting)
    TILE: tl.constexpr = SLOTS * STRIDE
    slot, stride = tl.arange(0, SLOTS), tl.arange(0, STRIDE)
    ray = slot * 0 - 1
    begin = slot * 0
    at = slot * 0
    end = slot * 0
    optical = slot * 0.0
    at3: tl.constexpr = L * F * H + H * G
    at5: tl.constexpr = at3 + (G + _SH) * H + MIDDLE * H * H
    w1 = _layer(weights, L * F, H, LP * F, HP)
    w2 = _layer(weights + L * F * H, H, G, HP, GP)
    w3 = _layer(weights + at3, G, H, GP, HP)
    w3v = _layer(weights + at3 + G * H, _SH, H, _SH, HP)
    w5 = _layer(weights + at5, H, 3, HP, 16)
    busy = n > 0
    while busy:
        done = (at >= end) | (optical > most_optical)
        tl.store(seen + ray, tl.minimum(at, end) - begin, mask=done & (ray >= 0))
        ones = done.to(tl.int32)
        following = tl.atomic_add(queue, tl.sum(ones), sem="relaxed")
        new = following + tl.cumsum(ones, 0) - 1
        there = done & (new < n)
        new = tl.load(hitting + new, mask=there, other=-1)
        ray = tl.where(done, new, ray)
        begin = tl.where(done, tl.load(first + new, mask=there, other=0), begin)
        end = tl.where(done, begin + tl.load(count + new, mask=there, other=0), end)
        at = tl.where(done, begin, at)
        optical = tl.where(done, 0.0, optical)
        i = tl.reshape(at[:, None] + stride[None, :], [TILE])
        live = i < tl.reshape(end[:, None] + stride[None, :] * 0, [TILE])
        owner = tl.maximum(tl.reshape(ray[:, None] + stride[None, :] * 0, [TILE]), 0)
        t0, t1 = tl.load(t_start + i, mask=live, other=0.0), tl.load(t_end + i, mask=live, other=0.0)
        x, y, z = _along(rays, owner, (t0 + t1) * 0.5, live, low, UNBOUNDED)
        cx, cy, cz, fx, fy, fz, res, size, offset, is_dense = cells(
            x, y, z, scales, resolutions, entries, offsets, dense, L, LP
        )
        found = interpolate(table, cx, cy, cz, fx, fy, fz, res, size, offset, is_dense, TILE, L, LP, F)
        encoding = tl.reshape(found.to(tl.float16), [TILE, LP * F])
        hidden = _relu(tl.dot(encoding, w1))
        geometry = tl.dot(hidden, w2)
        view = tl.load(harmonics + owner[:, None] * _SH + tl.arange(0, _SH)[None, :], mask=live[:, None], other=0.0)
        hidden = tl.dot(_half(geometry), w3)
        hidden = _relu(tl.dot(view, w3v, hidden))
        for m in tl.static_range(MIDDLE):
            w4 = _layer(weights + at3 + (G + _SH) * H + m * H * H, H, H, HP, HP)
            hidden = _relu(tl.dot(hidden, w4))
        colour = tl.dot(hidden, w5)
        o = tl.arange(0, 16)
        raw = _column0(geometry, GP)
        tl.store(out + i[:, None] * 4 + o[None, :], colour, mask=live[:, None] & (o[None, :] < 3))
        tl.store(out + i * 4 + 3, raw, mask=live)
        part = tl.where(live, tl.exp(tl.minimum(raw - 1.0, _CAP)) * (t1 - t0), 0.0)
        # NaN counts as optical depth 0, so the ray continues. The NaN stays in `out`, where the loss reveals it.
        part = tl.where(part == part, part, 0.0)
        optical += tl.sum(tl.reshape(part, [SLOTS, STRIDE]), 1)
        at += STRIDE
        waiting = (at < end) & (optical <= most_optical)
        busy = (following < n) | (tl.max(waiting.to(tl.int32)) > 0)
    tl.store(seen + ray, tl.minimum(at, end) - begin, mask=ray >= 0)


@triton.jit
def _density_of(
    x, y, z, table, weights, scales, resolutions, entries, offsets, dense,
    L: tl.constexpr, LP: tl.constexpr, F: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, G: tl.constexpr,
    GP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Density pre-activations [TILE] of points x, y, z [TILE] in the unit cube."""
    cx, cy, cz, fx, fy, fz, res, size, offset, is_dense = cells(
        x, y, z, scales, resolutions, entries, offsets, dense, L, LP
    )
    found = interpolate(table, cx, cy, cz, fx, fy, fz, res, size, offset, is_dense, TILE, L, LP, F)
    encoding = tl.reshape(found.to(tl.float16), [TILE, LP * F])
    hidden = _relu(tl.dot(encoding, _layer(weights, L * F, H, LP * F, HP)))
    return _column0(tl.dot(hidden, _layer(weights + L * F * H, H, G, HP, GP)), GP)


@triton.jit
def train(
    rays, harmonics, ray_id, t_start, t_end, index, weight, n_chosen, output_grad, scale, table, weights, low,
    scales, resolutions, entries, offsets, dense, table_grad, weight_grads,
    L: tl.constexpr, LP: tl.constexpr, F: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, G: tl.constexpr,
    GP: tl.constexpr, MIDDLE: tl.constexpr, UNBOUNDED: tl.constexpr, WEIGHTS: tl.constexpr, TILE: tl.constexpr,
    FIXED: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """Gradients of the parameters, times `scale`, from the gradients of the outputs of some samples.

    index [b]: the chosen samples. weight [b]: factors of their gradients. output_grad [B, 4]: gradients of the colour
    and density pre-activations of all samples. Gradients of the table are added to table_grad [entries, F]. Gradients
    of the layers go to weight_grads [programs, WEIGHTS], one row per program.

    FIXED: if not 0, table_grad holds integers, gradient * FIXED, so the sums do not depend on the order of the atomics.
    HELD: layers stay in shared memory. Otherwise they are loaded again at each use, which needs less shared memory.
    """
    n = tl.load(n_chosen)
    o16 = tl.arange(0, 16)
    at2 = L * F * H
    at3 = at2 + H * G
    at4 = at3 + (G + _SH) * H
    at5 = at4 + MIDDLE * H * H
    w1 = _layer(weights, L * F, H, LP * F, HP) if HELD else weights
    w2 = _layer(weights + at2, H, G, HP, GP) if HELD else weights
    w3 = _layer(weights + at3, G, H, GP, HP) if HELD else weights
    w3v = _layer(weights + at3 + G * H, _SH, H, _SH, HP) if HELD else weights
    w5 = _layer(weights + at5, H, 3, HP, 16) if HELD else weights
    # The sums of the layers are in global memory: kept in registers, they made the rest of the tile spill.
    out = weight_grads + tl.program_id(0) * WEIGHTS
    wide = tl.arange(0, 1024)
    for start in range(0, WEIGHTS, 1024):
        tl.store(out + start + wide, wide * 0.0, mask=start + wide < WEIGHTS)
    tl.debug_barrier()
    if MIDDLE >= 1:
        w4 = _layer(weights + at4, H, H, HP, HP) if HELD else weights
    if MIDDLE >= 2:
        w4b = _layer(weights + at4 + H * H, H, H, HP, HP) if HELD else weights
    for tile in range(tl.program_id(0), tl.cdiv(n, TILE), tl.num_programs(0)):
        j = tile * TILE + tl.arange(0, TILE)
        live = j < n
        i = tl.load(index + j, mask=live, other=0)
        factor = tl.load(weight + j, mask=live, other=0.0) * scale
        ray = tl.load(ray_id + i, mask=live, other=0)
        t = (tl.load(t_start + i, mask=live, other=0.0) + tl.load(t_end + i, mask=live, other=0.0)) * 0.5
        x, y, z = _along(rays, ray, t, live, low, UNBOUNDED)
        cx, cy, cz, fx, fy, fz, res, size, offset, is_dense = cells(
            x, y, z, scales, resolutions, entries, offsets, dense, L, LP
        )
        found = interpolate(table, cx, cy, cz, fx, fy, fz, res, size, offset, is_dense, TILE, L, LP, F)
        encoding = tl.reshape(found.to(tl.float16), [TILE, LP * F])
        h1 = _relu(tl.dot(encoding, _held(w1, weights, L * F, H, LP * F, HP, HELD)))
        geometry = _half(tl.dot(h1, _held(w2, weights + at2, H, G, HP, GP, HELD)))
        view = tl.load(harmonics + ray[:, None] * _SH + tl.arange(0, _SH)[None, :], mask=live[:, None], other=0.0)
        h3 = tl.dot(geometry, _held(w3, weights + at3, G, H, GP, HP, HELD))
        h3 = _relu(tl.dot(view, _held(w3v, weights + at3 + G * H, _SH, H, _SH, HP, HELD), h3))
        # Backward: g is the gradient of the pre-activations of the current layer.
        colour = tl.load(
            output_grad + i[:, None] * 4 + o16[None, :], mask=live[:, None] & (o16[None, :] < 3), other=0.0
        )
        g = (colour * factor[:, None]).to(tl.float16)
        density = tl.load(output_grad + i * 4 + 3, mask=live, other=0.0) * factor
        if MIDDLE == 0:
            _add_layer(out + at5, tl.dot(tl.trans(h3), g), H, 3, HP, 16)
            back = tl.dot(g, tl.trans(_held(w5, weights + at5, H, 3, HP, 16, HELD)))
            g = tl.where(h3 > 0, back, 0.0).to(tl.float16)
        else:
            h4 = _relu(tl.dot(h3, _held(w4, weights + at4, H, H, HP, HP, HELD)))
            if MIDDLE == 1:
                _add_layer(out + at5, tl.dot(tl.trans(h4), g), H, 3, HP, 16)
                back = tl.dot(g, tl.trans(_held(w5, weights + at5, H, 3, HP, 16, HELD)))
                g = tl.where(h4 > 0, back, 0.0).to(tl.float16)
            else:
                h4b = _relu(tl.dot(h4, _held(w4b, weights + at4 + H * H, H, H, HP, HP, HELD)))
                _add_layer(out + at5, tl.dot(tl.trans(h4b), g), H, 3, HP, 16)
                back = tl.dot(g, tl.trans(_held(w5, weights + at5, H, 3, HP, 16, HELD)))
                g = tl.where(h4b > 0, back, 0.0).to(tl.float16)
                _add_layer(out + at4 + H * H, tl.dot(tl.trans(h4), g), H, H, HP, HP)
                back = tl.dot(g, tl.trans(_held(w4b, weights + at4 + H * H, H, H, HP, HP, HELD)))
                g = tl.where(h4 > 0, back, 0.0).to(tl.float16)
            _add_layer(out + at4, tl.dot(tl.trans(h3), g), H, H, HP, HP)
            back = tl.dot(g, tl.trans(_held(w4, weights + at4, H, H, HP, HP, HELD)))
            g = tl.where(h3 > 0, back, 0.0).to(tl.float16)
        _add_layer(out + at3, tl.dot(tl.trans(geometry), g), G, H, GP, HP)
        _add_layer(out + at3 + G * H, tl.dot(tl.trans(view), g), _SH, H, _SH, HP)
        to_geometry = tl.dot(g, tl.trans(_held(w3, weights + at3, G, H, GP, HP, HELD)))
        to_geometry += tl.where(tl.arange(0, GP)[None, :] == 0, density[:, None], 0.0)
        g = to_geometry.to(tl.float16)
        _add_layer(out + at2, tl.dot(tl.trans(h1), g), H, G, HP, GP)
        back = tl.dot(g, tl.trans(_held(w2, weights + at2, H, G, HP, GP, HELD)))
        g = tl.where(h1 > 0, back, 0.0).to(tl.float16)
        _add_layer(out, tl.dot(tl.trans(encoding), g), L * F, H, LP * F, HP)
        back = tl.dot(g, tl.trans(_held(w1, weights, L * F, H, LP * F, HP, HELD)))
        to_table = tl.reshape(back, [TILE, LP, F])
        # Compute the cells again: keeping them from the forward would spill 160 bytes of registers per thread.
        cx, cy, cz, fx, fy, fz, res, size, offset, is_dense = cells(
            x, y, z, scales, resolutions, entries, offsets, dense, L, LP
        )
        feature = tl.arange(0, F)
        wanted = live[:, None, None] & (tl.arange(0, LP) < L)[None, :, None] & (feature >= 0)[None, None, :]
        for c in tl.static_range(8):
            row, part = corner(cx, cy, cz, fx, fy, fz, res, size, offset, is_dense, c)
            place = table_grad + row[:, :, None] * F + feature[None, None, :]
            value = part[:, :, None] * to_table
            if FIXED > 0.0:
                tl.atomic_add(place, (value * FIXED).to(tl.int64), mask=wanted, sem="relaxed")
            else:
                tl.atomic_add(place, value, mask=wanted, sem="relaxed")

"""The backward of the perceptron in Triton.

One kernel recomputes the forward and goes backward. A second one computes the weight gradients of networks that are too
large for the registers of the first.
"""

from __future__ import annotations

import triton
import triton.language as tl

from raymine.kernels.mlp.gpu_blocks import activate, back, block, put_block, put_rows, rows, through, times


@triton.jit(do_not_specialize=["n"])
def backward(
    inputs, weights, grad, to_inputs, parts, kept, n,
    LAYERS: tl.constexpr, I: tl.constexpr, O: tl.constexpr, IP: tl.constexpr, HP: tl.constexpr, LP: tl.constexpr,
    OP: tl.constexpr, LAST: tl.constexpr, HIDDEN: tl.constexpr, OUTPUT: tl.constexpr, HELD: tl.constexpr,
    TURNED: tl.constexpr, SUM: tl.constexpr, KEEP: tl.constexpr, WANTED: tl.constexpr, SCALE: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """WANTED: write the gradient of the inputs to to_inputs [n, I].

    SUM: write the weight gradients of each program to its row of parts [programs, weights].
    KEEP: write what `outer` needs to kept [n, PITCH]: the hidden activations, then the gradients of the pre-activations
    of each layer, times SCALE.
    """
    kind = weights.dtype.element_ty
    middle = weights + IP * HP
    HIDDENS: tl.constexpr = (LAYERS - 1) * HP
    PITCH: tl.constexpr = 2 * HIDDENS + OP
    if HELD:
        last = block(weights + LAST, LP, OP, TURNED)
        if LAYERS > 1:
            w0 = block(weights, IP, HP, TURNED)
        if LAYERS > 2:
            w1 = block(middle, HP, HP, TURNED)
        if LAYERS > 3:
            w2 = block(middle + HP * HP, HP, HP, TURNED)
        if LAYERS > 4:
            w3 = block(middle + 2 * HP * HP, HP, HP, TURNED)
        if LAYERS > 5:
            w4 = block(middle + 3 * HP * HP, HP, HP, TURNED)
    if SUM:
        d_last = tl.zeros([LP, OP], tl.float32)
        if LAYERS > 1:
            d0 = tl.zeros([IP, HP], tl.float32)
        if LAYERS > 2:
            d1 = tl.zeros([HP, HP], tl.float32)
        if LAYERS > 3:
            d2 = tl.zeros([HP, HP], tl.float32)
        if LAYERS > 4:
            d3 = tl.zeros([HP, HP], tl.float32)
        if LAYERS > 5:
            d4 = tl.zeros([HP, HP], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(n, TILE), tl.num_programs(0)):
        i = tile * TILE + tl.arange(0, TILE)
        live = i < n
        # Rows after the end repeat the last sample, with gradient 0. Rows of zeros might overflow (sums of exp(0) as
        # input of another exponential do), and infinity times 0 would put NaN into the weight gradients.
        x = rows(inputs, tl.minimum(i, n - 1), i >= 0, I, IP, I).to(kind)
        h = x
        if LAYERS > 1:
            h1 = activate(times(x, w0 if HELD else block(weights, IP, HP, TURNED)), HIDDEN).to(kind)
            h = h1
        if LAYERS > 2:
            h2 = activate(times(h1, w1 if HELD else block(middle, HP, HP, TURNED)), HIDDEN).to(kind)
            h = h2
        if LAYERS > 3:
            h3 = activate(times(h2, w2 if HELD else block(middle + HP * HP, HP, HP, TURNED)), HIDDEN).to(kind)
            h = h3
        if LAYERS > 4:
            h4 = activate(times(h3, w3 if HELD else block(middle + 2 * HP * HP, HP, HP, TURNED)), HIDDEN).to(kind)
            h = h4
        if LAYERS > 5:
            h5 = activate(times(h4, w4 if HELD else block(middle + 3 * HP * HP, HP, HP, TURNED)), HIDDEN).to(kind)
            h = h5
        if KEEP:
            if LAYERS > 1:
                put_rows(kept, i, live, h1, HP, HP, PITCH)
            if LAYERS > 2:
                put_rows(kept + HP, i, live, h2, HP, HP, PITCH)
            if LAYERS > 3:
                put_rows(kept + 2 * HP, i, live, h3, HP, HP, PITCH)
            if LAYERS > 4:
                put_rows(kept + 3 * HP, i, live, h4, HP, HP, PITCH)
            if LAYERS > 5:
                put_rows(kept + 4 * HP, i, live, h5, HP, HP, PITCH)
        # g is the gradient of the pre-activations of a layer, and `after` holds the weights of that layer.
        after = last if HELD else block(weights + LAST, LP, OP, TURNED)
        z = times(h, after)
        g = rows(grad, i, live, O, OP, O) * SCALE
        g = through(g, activate(z, OUTPUT), z, OUTPUT).to(kind)
        if SUM:
            d_last += times(tl.trans(h), g)
        if KEEP:
            put_rows(kept + 2 * HIDDENS, i, live, g, OP, OP, PITCH)
        if LAYERS > 5:
            w = w4 if HELD else block(middle + 3 * HP * HP, HP, HP, TURNED)
            g = back(g, after, h5, h4, w, HIDDEN)
            after = w
            if SUM:
                d4 += times(tl.trans(h4), g)
            if KEEP:
                put_rows(kept + HIDDENS + 4 * HP, i, live, g, HP, HP, PITCH)
        if LAYERS > 4:
            w = w3 if HELD else block(middle + 2 * HP * HP, HP, HP, TURNED)
            g = back(g, after, h4, h3, w, HIDDEN)
            after = w
            if SUM:
                d3 += times(tl.trans(h3), g)
            if KEEP:
                put_rows(kept + HIDDENS + 3 * HP, i, live, g, HP, HP, PITCH)
        if LAYERS > 3:
            w = w2 if HELD else block(middle + HP * HP, HP, HP, TURNED)
            g = back(g, after, h3, h2, w, HIDDEN)
            after = w
            if SUM:
                d2 += times(tl.trans(h2), g)
            if KEEP:
                put_rows(kept + HIDDENS + 2 * HP, i, live, g, HP, HP, PITCH)
        if LAYERS > 2:
            w = w1 if HELD else block(middle, HP, HP, TURNED)
            g = back(g, after, h2, h1, w, HIDDEN)
            after = w
            if SUM:
                d1 += times(tl.trans(h1), g)
            if KEEP:
                put_rows(kept + HIDDENS + HP, i, live, g, HP, HP, PITCH)
        if LAYERS > 1:
            w = w0 if HELD else block(weights, IP, HP, TURNED)
            g = back(g, after, h1, x, w, HIDDEN)
            after = w
            if SUM:
                d0 += times(tl.trans(x), g)
            if KEEP:
                put_rows(kept + HIDDENS, i, live, g, HP, HP, PITCH)
        if WANTED:
            put_rows(to_inputs, i, live, times(g, tl.trans(after)) / SCALE, I, IP, I)
    if SUM:
        out = parts + tl.program_id(0) * (LAST + LP * OP)
        put_block(out + LAST, d_last / SCALE, LP, OP, TURNED)
        if LAYERS > 1:
            put_block(out, d0 / SCALE, IP, HP, TURNED)
        if LAYERS > 2:
            put_block(out + IP * HP, d1 / SCALE, HP, HP, TURNED)
        if LAYERS > 3:
            put_block(out + IP * HP + HP * HP, d2 / SCALE, HP, HP, TURNED)
        if LAYERS > 4:
            put_block(out + IP * HP + 2 * HP * HP, d3 / SCALE, HP, HP, TURNED)
        if LAYERS > 5:
            put_block(out + IP * HP + 3 * HP * HP, d4 / SCALE, HP, HP, TURNED)


@triton.jit(do_not_specialize=["n"])
def outer(
    left, right, parts, n, WIDTH: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, TOTAL: tl.constexpr, SCALE: tl.constexpr, TURNED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Weight gradient of one layer: each program writes its part to its row of parts [programs, TOTAL].

    The gradient is left^T right / SCALE, with the inputs left [n, WIDTH] of the layer and the gradients
    right [n, COLS] of its pre-activations. LEFT and RIGHT are the row pitches of the two.
    """
    total = tl.zeros([ROWS, COLS], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(n, TILE), tl.num_programs(0)):
        i = tile * TILE + tl.arange(0, TILE)
        a = rows(left, i, i < n, WIDTH, ROWS, LEFT).to(right.dtype.element_ty)
        b = rows(right, i, i < n, COLS, COLS, RIGHT).to(right.dtype.element_ty)
        total += times(tl.trans(a), b)
    put_block(parts + tl.program_id(0) * TOTAL, total / SCALE, ROWS, COLS, TURNED)

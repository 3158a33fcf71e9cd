"""Parts of the perceptron's kernels: blocks in and out of memory, products, activations and their slopes."""

from __future__ import annotations

import triton
import triton.language as tl

from raymine.kernels import dispatch
from raymine.kernels.mlp.reference import LEAK, SHARPNESS

_K: tl.constexpr = tl.constexpr(SHARPNESS)
_LEAK: tl.constexpr = tl.constexpr(LEAK)
_INTERPRETED: tl.constexpr = tl.constexpr(dispatch.interpreted())


@triton.jit
def times(a, b):
    """a @ b, added in float32. Float32 operands are not rounded to tf32."""
    if _INTERPRETED:
        # The interpreter keeps bfloat16 as integers and would multiply these. Products of halves are exact in float32.
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _places(ROWS: tl.constexpr, COLS: tl.constexpr, TURNED: tl.constexpr):
    """Where a layer [ROWS, COLS] lies in memory; TURNED: as [COLS, ROWS]."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLS)[None, :]
    return row + column * ROWS if TURNED else row * COLS + column


@triton.jit
def block(weights, ROWS: tl.constexpr, COLS: tl.constexpr, TURNED: tl.constexpr):
    """A padded layer [ROWS, COLS]."""
    return tl.load(weights + _places(ROWS, COLS, TURNED))


@triton.jit
def put_block(out, value, ROWS: tl.constexpr, COLS: tl.constexpr, TURNED: tl.constexpr):
    tl.store(out + _places(ROWS, COLS, TURNED), value)


@triton.jit
def rows(source, i, live, WIDTH: tl.constexpr, PADDED: tl.constexpr, PITCH: tl.constexpr):
    """Rows i of `source`, PITCH apart, as [n, PADDED] float32: 0 beyond WIDTH columns and where not live [n]."""
    column = tl.arange(0, PADDED)
    place = source + i.to(tl.int64)[:, None] * PITCH + column[None, :]
    return tl.load(place, mask=live[:, None] & (column < WIDTH)[None, :], other=0.0).to(tl.float32)


@triton.jit
def put_rows(out, i, live, value, WIDTH: tl.constexpr, PADDED: tl.constexpr, PITCH: tl.constexpr):
    column = tl.arange(0, PADDED)
    place = out + i.to(tl.int64)[:, None] * PITCH + column[None, :]
    tl.store(place, value.to(out.dtype.element_ty), mask=live[:, None] & (column < WIDTH)[None, :])


@triton.jit
def activate(x, NAME: tl.constexpr):
    """float32; written so that NaN stays NaN and nothing overflows before the result does."""
    y = x
    if NAME == "relu":
        y = tl.where(x < 0, 0.0, x)
    elif NAME == "leaky_relu":
        y = tl.where(x < 0, x * _LEAK, x)
    elif NAME == "sigmoid":
        y = tl.sigmoid(x)
    elif NAME == "exponential":
        y = tl.exp(x)
    elif NAME == "squareplus":
        # The two roots of u - 1 / u = K x are u and -1 / u: below 0, where they cancel, the positive one is a quotient.
        v = tl.abs(x * _K)
        u = (v + tl.sqrt(v * v + 4.0)) * 0.5
        y = tl.where(x < 0, 1.0 / u, u) / _K
    elif NAME == "softplus":
        v = x * _K
        y = (tl.where(v < 0, 0.0, v) + tl.log(1.0 + tl.exp(-tl.abs(v)))) / _K
    elif NAME == "tanh":
        y = tl.sigmoid(x * 2.0) * 2.0 - 1.0
    elif NAME == "sine":
        y = tl.sin(x)
    return y


@triton.jit
def through(g, y, x, NAME: tl.constexpr):
    """g times the slope of an activation at y = activation(x), from y alone but for the sine. All float32."""
    if NAME == "relu":
        g = tl.where(y <= 0, 0.0, g)
    elif NAME == "leaky_relu":
        g = tl.where(y <= 0, g * _LEAK, g)
    elif NAME == "sigmoid":
        g = g * y * (1.0 - y)
    elif NAME == "exponential":
        g = g * y
    elif NAME == "squareplus":
        u = y * _K
        g = g * (1.0 - 1.0 / (u * u + 1.0))
    elif NAME == "softplus":
        g = g * (1.0 - tl.exp(y * -_K))
    elif NAME == "tanh":
        g = g * (1.0 - y * y)
    elif NAME == "sine":
        g = g * tl.cos(x)
    return g


@triton.jit
def back(g, after, y, before, weights, NAME: tl.constexpr):
    """From the gradient g at what `y @ after` gives to that at what `before @ weights` gives, whose activation is y."""
    x = y
    if NAME == "sine":
        # Its slope cannot be told from its value, and another product costs less than keeping one more block.
        x = times(before, weights)
    return through(times(g, tl.trans(after)), y.to(tl.float32), x, NAME).to(y.dtype)

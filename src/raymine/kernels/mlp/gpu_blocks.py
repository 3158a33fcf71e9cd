"""Parts of the perceptron's kernels: loading and storing blocks, products, activations and their derivatives."""

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
    """a @ b, accumulated in float32. Float32 operands are not rounded to tf32."""
    if _INTERPRETED:
        # The interpreter stores bfloat16 as integers and would multiply those. Products of half-precision numbers are
        # exact in float32.
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _places(ROWS: tl.constexpr, COLS: tl.constexpr, TURNED: tl.constexpr):
    """Offsets [ROWS, COLS] of the elements of a layer in memory; TURNED: the layer is stored as [COLS, ROWS]."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLS)[None, :]
    return row + column * ROWS if TURNED else row * COLS + column


@triton.jit
def block(weights, ROWS: tl.constexpr, COLS: tl.constexpr, TURNED: tl.constexpr):
    """Loads a padded layer [ROWS, COLS]."""
    return tl.load(weights + _places(ROWS, COLS, TURNED))


@triton.jit
def put_block(out, value, ROWS: tl.constexpr, COLS: tl.constexpr, TURNED: tl.constexpr):
    """Stores a padded layer [ROWS, COLS]."""
    tl.store(out + _places(ROWS, COLS, TURNED), value)


@triton.jit
def rows(source, i, live, WIDTH: tl.constexpr, PADDED: tl.constexpr, PITCH: tl.constexpr):
    """Loads rows i [n] of `source` as [n, PADDED] float32: 0 from column WIDTH on, and where not live [n].

    PITCH: distance between rows in memory.
    """
    column = tl.arange(0, PADDED)
    place = source + i.to(tl.int64)[:, None] * PITCH + column[None, :]
    return tl.load(place, mask=live[:, None] & (column < WIDTH)[None, :], other=0.0).to(tl.float32)


@triton.jit
def put_rows(out, i, live, value, WIDTH: tl.constexpr, PADDED: tl.constexpr, PITCH: tl.constexpr):
    """Stores the first WIDTH columns of value [n, PADDED] to rows i of `out`, where live [n]."""
    column = tl.arange(0, PADDED)
    place = out + i.to(tl.int64)[:, None] * PITCH + column[None, :]
    tl.store(place, value.to(out.dtype.element_ty), mask=live[:, None] & (column < WIDTH)[None, :])


@triton.jit
def activate(x, NAME: tl.constexpr):
    """An activation, in float32. NaN stays NaN, and no intermediate value overflows before the result does."""
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
        # y = u / K, where u is the positive root of u - 1 / u = K x. For x < 0 the formula of the root cancels, but u
        # is 1 / (root for -x).
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
    """g times the derivative of an activation at x, with y = activation(x). All float32. Only the sine uses x."""
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
    """One layer of the backward: from the gradient g of `y @ after` to the gradient of `before @ weights`.

    y is the activation of `before @ weights`.
    """
    x = y
    if NAME == "sine":
        # The derivative of the sine does not follow from its value. Computing the product again costs less than keeping
        # one more block.
        x = times(before, weights)
    return through(times(g, tl.trans(after)), y.to(tl.float32), x, NAME).to(y.dtype)

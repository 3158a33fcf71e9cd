"""Adam in Triton: one pass over a parameter, its moments, its float16 copy and its gradient.

The same pass can reset the gradient to 0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from raymine.kernels.adam.reference import Rates

_BLOCK = 1024


@triton.jit(do_not_specialize=["n"])
def adam(
    parameter, copy, grad, first, second, rates, offsets, penalties, n,
    SPARSE: tl.constexpr, MOMENTUM: tl.constexpr, FIXED: tl.constexpr, CLEAR: tl.constexpr, ROW: tl.constexpr,
    BLOCK: tl.constexpr, LEVELS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """One AdamW step on n elements. `copy` receives the new parameters in its own type.

    rates [8]: 1 to apply the step or 0 to skip it, factor of the gradients, learning rate / (1 - beta1^count), beta1,
        beta2, 1 / (1 - beta2^count), eps, learning rate * decay.
    SPARSE: elements whose gradient is 0 do not change. A row of ROW elements whose gradients are all 0 is not read any
        further. n must be a multiple of ROW.
    CLEAR: set the gradients to 0, also if the step is skipped.
    FIXED: if not 0, gradients are integers that hold gradient * FIXED.
    LEVELS: if not 0, the parameter is a table of FEATURES columns. Its level l begins with row offsets[l] (LEVELS of
        them, ascending from 0), and penalties[l] times the value is added to gradients that are not 0.
    """
    # [BLOCK // ROW, ROW], so that a thread reads and writes the ROW elements of a row in one memory access.
    row = tl.program_id(0).to(tl.int64) * (BLOCK // ROW) + tl.arange(0, BLOCK // ROW)
    i = row[:, None] * ROW + tl.arange(0, ROW)[None, :]
    inside = row * ROW < n
    g = tl.load(grad + i, mask=inside[:, None], other=0)
    changes = g != 0
    touched = inside & (tl.max(changes.to(tl.int32), 1) > 0)
    g = g.to(tl.float32)
    if FIXED > 0.0:
        g = g * (1.0 / FIXED)
    live = ((touched if SPARSE else inside) & (tl.load(rates + row * 0) > 0))[:, None]
    rate, b1, b2 = tl.load(rates + 2), tl.load(rates + 3), tl.load(rates + 4)
    scale2, eps, shrink = tl.load(rates + 5), tl.load(rates + 6), tl.load(rates + 7)
    p, known = tl.load(parameter + i, mask=live, other=0.0), tl.load(second + i, mask=live, other=0.0)
    # The barrier keeps the loads above together: the factor below is needed for all further arithmetic. Without the
    # barrier the compiler finishes with `p` before it loads `known`, and waits for memory a second time.
    tl.debug_barrier()
    g = g * tl.load(rates + 1)
    if LEVELS > 0:
        entry = row * ROW // FEATURES
        penalty = tl.zeros([BLOCK // ROW], tl.float32)
        for level in tl.static_range(LEVELS):
            penalty = tl.where(entry >= tl.load(offsets + level), tl.load(penalties + level), penalty)
        g += penalty[:, None] * p
    mean = g
    if MOMENTUM:
        before = tl.load(first + i, mask=live, other=0.0)
        mean = b1 * before + (1 - b1) * g
        tl.store(first + i, tl.where(changes, mean, before) if SPARSE else mean, mask=live)
    v = b2 * known + (1 - b2) * g * g
    tl.store(second + i, tl.where(changes, v, known) if SPARSE else v, mask=live)
    new = p - (rate * mean / (tl.sqrt(v * scale2) + eps) + shrink * p)
    new = tl.where(changes, new, p) if SPARSE else new
    tl.store(parameter + i, new, mask=live)
    tl.store(copy + i, new.to(copy.dtype.element_ty), mask=live)
    if CLEAR:
        tl.store(grad + i, tl.zeros([BLOCK // ROW, ROW], grad.dtype.element_ty), mask=touched[:, None])


def row_of(n: int) -> int:
    """ROW of `adam` for n elements: 4 if n is a multiple of 4, else 1."""
    return 4 if n % 4 == 0 else 1


def update(parameter: Tensor, grad: Tensor, m: Tensor | None, v: Tensor, rates: Rates, sparse: bool) -> None:
    """As `reference.update`."""
    n, device = parameter.numel(), parameter.device
    if n == 0:
        return
    corrected = rates.lr / (1 - rates.beta1**rates.count), 1 / (1 - rates.beta2**rates.count)
    shrink = rates.lr * rates.decay
    numbers = torch.tensor((1.0, 1.0, corrected[0], rates.beta1, rates.beta2, corrected[1], rates.eps, shrink))
    # Only a copy from pinned memory is asynchronous; any other copy would wait for the device.
    numbers = numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers
    if rates.gate is not None:
        numbers[0] = rates.gate
    adam[(triton.cdiv(n, _BLOCK),)](
        parameter, parameter, grad, v if m is None else m, v, numbers, numbers, numbers, n,
        SPARSE=sparse, MOMENTUM=m is not None, FIXED=0.0, CLEAR=False, ROW=row_of(n), BLOCK=_BLOCK, LEVELS=0,
        FEATURES=1,
    )  # fmt: skip

"""Adam in Triton: one pass over a parameter, its moments, its float16 copy and its gradient, which it may clear."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from raymine.kernels.adam.reference import Rates

_BLOCK = 1024


@triton.jit(do_not_specialize=["n"])
def adam(
    parameter, copy, grad, first, second, rates, n,
    SPARSE: tl.constexpr, MOMENTUM: tl.constexpr, FIXED: tl.constexpr, CLEAR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """rates [8]: whether the step counts (1 or 0), what to multiply gradients by, learning rate over 1 - beta1^n,
    beta1, beta2, 1 / (1 - beta2^n), eps, learning rate times decay.

    SPARSE: elements whose gradient is 0 stay as they are, and nothing else of them is read. CLEAR: gradients are 0
    afterwards; where the step does not count, that is all. FIXED: not 0 where gradients are integers, times FIXED.
    """
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    g = tl.load(grad + i, mask=inside, other=0)
    touched = inside & (g != 0)
    g = g.to(tl.float32)
    if FIXED > 0.0:
        g = g * (1.0 / FIXED)
    live = touched if SPARSE else inside
    live = live & (tl.load(rates + i * 0) > 0)
    rate, b1, b2 = tl.load(rates + 2), tl.load(rates + 3), tl.load(rates + 4)
    scale2, eps, shrink = tl.load(rates + 5), tl.load(rates + 6), tl.load(rates + 7)
    p = tl.load(parameter + i, mask=live, other=0.0)
    g = g * tl.load(rates + 1)
    mean = g
    if MOMENTUM:
        mean = b1 * tl.load(first + i, mask=live, other=0.0) + (1 - b1) * g
        tl.store(first + i, mean, mask=live)
    v = b2 * tl.load(second + i, mask=live, other=0.0) + (1 - b2) * g * g
    tl.store(second + i, v, mask=live)
    p -= rate * mean / (tl.sqrt(v * scale2) + eps) + shrink * p
    tl.store(parameter + i, p, mask=live)
    tl.store(copy + i, p.to(copy.dtype.element_ty), mask=live)
    if CLEAR:
        tl.store(grad + i, tl.zeros([BLOCK], grad.dtype.element_ty), mask=touched)


def update(parameter: Tensor, grad: Tensor, m: Tensor | None, v: Tensor, rates: Rates, sparse: bool) -> None:
    """As `reference.update`."""
    n, device = parameter.numel(), parameter.device
    if n == 0:
        return
    corrected = rates.lr / (1 - rates.beta1**rates.count), 1 / (1 - rates.beta2**rates.count)
    shrink = rates.lr * rates.decay
    numbers = torch.tensor((1.0, 1.0, corrected[0], rates.beta1, rates.beta2, corrected[1], rates.eps, shrink))
    # A copy from pinned memory is all that does not wait for what the device is doing.
    numbers = numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers
    if rates.gate is not None:
        numbers[0] = rates.gate
    adam[(triton.cdiv(n, _BLOCK),)](
        parameter, parameter, grad, v if m is None else m, v, numbers, n,
        SPARSE=sparse, MOMENTUM=m is not None, FIXED=0.0, CLEAR=False, BLOCK=_BLOCK,
    )  # fmt: skip

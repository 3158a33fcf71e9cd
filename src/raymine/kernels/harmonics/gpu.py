"""Spherical harmonics in Triton: a few threads share a direction, and each thread owns some neighbouring columns.

Q_lm = N_lm P_lm(z) includes the norm of the reference. Its recurrence is

    Q_00 = 1 / sqrt(4 pi),    Q_{m+1,m+1} = -sqrt((2 m + 3) / (2 m + 2)) Q_mm, times sqrt(2) where m = 0
    Q_{l+1,m} = sqrt((4 k - 1) / (k - m^2)) z Q_lm - sqrt((l^2 - m^2) (2 l + 3) / ((2 l - 1) (k - m^2))) Q_{l-1,m}

with k = (l + 1)^2. Column l^2 + l + m is Q_lm C_m(x, y) and column l^2 + l - m is Q_lm S_m(x, y).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from raymine.kernels._triton import power_of_two

_BLOCK = 64
_FLAT: tl.constexpr = tl.constexpr(0.28209479177387814)
"""1 / sqrt(4 pi)"""


@triton.jit(do_not_specialize=["n"])
def _harmonics(direction, out, n, DEGREE: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """out [n, DEGREE^2]. COLUMNS: the smallest power of two that is at least DEGREE^2.

    Every thread computes the whole recurrence and keeps its own columns, so that one store writes neighbouring columns
    together. A store per column would write every number separately.
    """
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = i < n
    x = tl.load(direction + i * 3, mask=live, other=0.0)
    y = tl.load(direction + i * 3 + 1, mask=live, other=0.0)
    z = tl.load(direction + i * 3 + 2, mask=live, other=0.0)
    column = tl.arange(0, COLUMNS)[None, :]
    kept = tl.zeros([BLOCK, COLUMNS], tl.float32)
    cosine, sine, top = x * 0 + 1.0, x * 0, x * 0 + _FLAT
    for m in tl.static_range(DEGREE):
        below, here = z * 0, top
        for l in tl.static_range(m, DEGREE):
            kept = tl.where(column == l * l + l + m, (here * cosine)[:, None], kept)
            if m > 0:
                kept = tl.where(column == l * l + l - m, (here * sine)[:, None], kept)
            k = (l + 1) * (l + 1)
            up = tl.sqrt((4 * k - 1) / (k - m * m))
            down = tl.sqrt((l * l - m * m) * (2 * l + 3) / ((2 * l - 1) * (k - m * m)))
            below, here = here, up * z * here - down * below
        cosine, sine = x * cosine - y * sine, x * sine + y * cosine
        top *= -tl.sqrt((2 * m + 3) / (2 * m + 2) * (2.0 if m == 0 else 1.0))
    place = out + i[:, None] * (DEGREE * DEGREE) + column
    tl.store(place, kept, mask=live[:, None] & (column < DEGREE * DEGREE))


def harmonics(direction: Tensor, degree: int) -> Tensor:
    """As `reference.harmonics`, for float32."""
    n = direction.shape[0]
    out = torch.empty(n, degree**2, device=direction.device)
    if n:
        _harmonics[(triton.cdiv(n, _BLOCK),)](
            direction.contiguous(), out, n, DEGREE=degree, COLUMNS=power_of_two(degree**2), BLOCK=_BLOCK
        )
    return out

"""AdamW (Loshchilov and Hutter, 2019) in plain torch: the definition. Without decay it is Adam.

With gradient g, moments m and v, rates b1 and b2 and step count n (from 1):

    m = b1 m + (1 - b1) g;   v = b2 v + (1 - b2) g^2
    p -= lr * ((m / (1 - b1^n)) / (sqrt(v / (1 - b2^n)) + eps) + decay * p)

With b1 = 0 there is no first moment: m is None, and g replaces it in the second line. This is RMSprop with bias
correction. With `sparse`, elements whose gradient is exactly 0 keep p, m and v (hash entries that no sample used).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rates(NamedTuple):
    """lr, b1, b2, eps, decay and n of the module docstring; count is n, from 1.

    gate: [] bool on the device of the parameter. If it is False, the update changes nothing. None means True.
    """

    lr: float
    beta1: float
    beta2: float
    eps: float
    decay: float
    count: int  # type: ignore[assignment]  # shadows a method of tuple
    gate: Tensor | None = None


def update(parameter: Tensor, grad: Tensor, m: Tensor | None, v: Tensor, rates: Rates, sparse: bool) -> None:
    """The formulas of the module docstring, in place. All tensors have one shape."""
    live = grad != 0 if sparse else torch.ones_like(grad, dtype=torch.bool)
    if rates.gate is not None:
        live = live & rates.gate
    new_m = grad if m is None else rates.beta1 * m + (1 - rates.beta1) * grad
    new_v = rates.beta2 * v + (1 - rates.beta2) * grad * grad
    scale1, scale2 = 1 / (1 - rates.beta1**rates.count), 1 / (1 - rates.beta2**rates.count)
    towards = (new_m * scale1) / ((new_v * scale2).sqrt() + rates.eps)
    new_p = parameter - rates.lr * (towards + rates.decay * parameter)
    parameter.copy_(torch.where(live, new_p, parameter))
    if m is not None:
        m.copy_(torch.where(live, new_m, m))
    v.copy_(torch.where(live, new_v, v))


def update_rows(parameter: Tensor, rows: Tensor, grad: Tensor, m: Tensor | None, v: Tensor, rates: Rates) -> None:
    """As `update` with `sparse` and a gradient that is 0 outside `rows`, in place. Weight decay is not applied."""
    part, first, second = parameter[rows], None if m is None else m[rows], v[rows]
    update(part, grad, first, second, rates._replace(decay=0.0), sparse=True)
    parameter[rows], v[rows] = part, second
    if m is not None and first is not None:
        m[rows] = first

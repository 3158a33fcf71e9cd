"""Adam with Numba, in one pass. In sparse mode an element without a gradient costs one comparison."""

from __future__ import annotations

import numba
import numpy as np
from torch import Tensor

from raymine.kernels._numba import kernel, tasks
from raymine.kernels.adam.reference import Rates


@kernel
def _update(p, g, m, v, step, b1, b2, eps, shrink, scale2, sparse, n_tasks):
    n = p.shape[0]
    one = np.float32(1.0)
    for task in numba.prange(n_tasks):
        for i in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            if sparse and g[i] == 0:
                continue
            grad = g[i]
            mean = grad
            if b1 != 0:
                mean = b1 * m[i] + (one - b1) * grad
                m[i] = mean
            v[i] = b2 * v[i] + (one - b2) * grad * grad
            p[i] -= step * mean / (np.sqrt(v[i] * scale2) + eps) + shrink * p[i]


@kernel
def _update_rows(p, rows, g, m, v, step, b1, b2, eps, scale2, n_tasks):
    n = rows.shape[0]
    one = np.float32(1.0)
    for task in numba.prange(n_tasks):
        for k in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            row = rows[k]
            if b1 == 0 and g.shape[1] == 4:
                # Unrolled and without branches, so that the compiler vectorises the four features.
                g0, g1, g2, g3 = g[k, 0], g[k, 1], g[k, 2], g[k, 3]
                v0, v1, v2, v3 = v[row, 0], v[row, 1], v[row, 2], v[row, 3]
                v0 = b2 * v0 + (one - b2) * g0 * g0 if g0 != 0 else v0
                v1 = b2 * v1 + (one - b2) * g1 * g1 if g1 != 0 else v1
                v2 = b2 * v2 + (one - b2) * g2 * g2 if g2 != 0 else v2
                v3 = b2 * v3 + (one - b2) * g3 * g3 if g3 != 0 else v3
                v[row, 0], v[row, 1], v[row, 2], v[row, 3] = v0, v1, v2, v3
                p[row, 0] -= step * g0 / (np.sqrt(v0 * scale2) + eps)
                p[row, 1] -= step * g1 / (np.sqrt(v1 * scale2) + eps)
                p[row, 2] -= step * g2 / (np.sqrt(v2 * scale2) + eps)
                p[row, 3] -= step * g3 / (np.sqrt(v3 * scale2) + eps)
                continue
            for f in range(g.shape[1]):
                grad = g[k, f]
                if grad != 0:
                    mean = grad
                    if b1 != 0:
                        mean = b1 * m[row, f] + (one - b1) * grad
                        m[row, f] = mean
                    v[row, f] = b2 * v[row, f] + (one - b2) * grad * grad
                    p[row, f] -= step * mean / (np.sqrt(v[row, f] * scale2) + eps)


def update_rows(parameter: Tensor, rows: Tensor, grad: Tensor, m: Tensor | None, v: Tensor, rates: Rates) -> None:
    """As `reference.update_rows`."""
    if rates.gate is not None and not rates.gate:
        return
    # Without a first moment the kernel does not access `m`, but it needs an array there: it gets `v`.
    p, r, g, m1, v1 = (part.detach().numpy() for part in (parameter, rows, grad, v if m is None else m, v))
    step = rates.lr / (1 - rates.beta1**rates.count)
    scale2 = 1 / (1 - rates.beta2**rates.count)
    numbers = (np.float32(x) for x in (step, rates.beta1, rates.beta2, rates.eps, scale2))
    _update_rows(p, r, g, m1, v1, *numbers, tasks(r.shape[0], 1024))


def update(parameter: Tensor, grad: Tensor, m: Tensor | None, v: Tensor, rates: Rates, sparse: bool) -> None:
    """As `reference.update`."""
    if rates.gate is not None and not rates.gate:
        return
    p, g, m1, v1 = (part.detach().reshape(-1).numpy() for part in (parameter, grad, v if m is None else m, v))
    step = rates.lr / (1 - rates.beta1**rates.count)
    scale2 = 1 / (1 - rates.beta2**rates.count)
    numbers = (np.float32(x) for x in (step, rates.beta1, rates.beta2, rates.eps, rates.lr * rates.decay, scale2))
    _update(p, g, m1, v1, *numbers, sparse, tasks(p.shape[0], 4096))

"""Adam with Numba: one pass; an untouched block of eight elements costs eight comparisons."""

from __future__ import annotations

import numba
import numpy as np
from torch import Tensor

from raymine.kernels._numba import kernel, tasks
from raymine.kernels.adam.reference import Rates


@kernel
def _update(p, g, m, v, step, b1, b2, eps, decay, scale2, sparse, n_tasks):
    n = p.shape[0]
    one = np.float32(1.0)
    for task in numba.prange(n_tasks):
        for i in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            if sparse and g[i] == 0:
                continue
            grad = g[i] + decay * p[i]
            m[i] = b1 * m[i] + (one - b1) * grad
            v[i] = b2 * v[i] + (one - b2) * grad * grad
            p[i] -= step * m[i] / (np.sqrt(v[i] * scale2) + eps)


def update(parameter: Tensor, grad: Tensor, m: Tensor, v: Tensor, rates: Rates, sparse: bool) -> None:
    """As `reference.update`."""
    p, g, m1, v1 = (part.detach().reshape(-1).numpy() for part in (parameter, grad, m, v))
    step = rates.lr / (1 - rates.beta1**rates.count)
    scale2 = 1 / (1 - rates.beta2**rates.count)
    numbers = (np.float32(x) for x in (step, rates.beta1, rates.beta2, rates.eps, rates.decay, scale2))
    _update(p, g, m1, v1, *numbers, sparse, tasks(p.shape[0], 4096))

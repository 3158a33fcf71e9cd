"""Spherical harmonics with Numba. The recurrence is that of the Triton kernel (`gpu`); tables hold its factors."""

from __future__ import annotations

import math
from functools import cache

import numba
import numpy as np
import torch
from torch import Tensor

from raymine.kernels._numba import array, kernel, tasks


@kernel
def _harmonics(direction, n_tasks, top, up, down, out):
    n, degree = direction.shape[0], top.shape[0]
    for task in numba.prange(n_tasks):
        for i in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            x, y, z = direction[i, 0], direction[i, 1], direction[i, 2]
            cosine, sine = np.float32(1), np.float32(0)
            for m in range(degree):
                below, here = np.float32(0), top[m]
                for l in range(m, degree):
                    out[i, l * l + l + m] = here * cosine
                    if m > 0:
                        out[i, l * l + l - m] = here * sine
                    below, here = here, up[l, m] * z * here - down[l, m] * below
                cosine, sine = x * cosine - y * sine, x * sine + y * cosine


def harmonics(direction: Tensor, degree: int) -> Tensor:
    """As `reference.harmonics`, for float32."""
    out = np.empty((direction.shape[0], degree**2), np.float32)
    _harmonics(array(direction), tasks(direction.shape[0]), *_factors(degree), out)
    return torch.from_numpy(out)


@cache
def _factors(degree: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Q_mm [degree], and the factors of z Q_lm and of Q_{l-1,m}, each [degree, degree] with index [l, m]."""
    top, up, down = np.zeros(degree), np.zeros((degree, degree)), np.zeros((degree, degree))
    top[0] = 1 / math.sqrt(4 * math.pi)
    for m in range(1, degree):
        top[m] = -math.sqrt((2 * m + 1) / (2 * m) * (2 if m == 1 else 1)) * top[m - 1]
    for l in range(degree):
        for m in range(l + 1):
            k = (l + 1) ** 2
            up[l, m] = math.sqrt((4 * k - 1) / (k - m * m))
            down[l, m] = math.sqrt((l * l - m * m) * (2 * l + 3) / ((2 * l - 1) * (k - m * m))) if l > m else 0
    return top.astype(np.float32), up.astype(np.float32), down.astype(np.float32)

"""Running sums and products with Numba: tasks are ranges of rays, and totals are float64."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from raymine.kernels._numba import array, kernel, tasks


@kernel
def _scan(values, first, count, product, exclusive, reverse, out, n_tasks):
    n, channels = first.shape[0], values.shape[1]
    for task in numba.prange(n_tasks):
        for r in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            begin, step = first[r], 1
            if reverse:
                begin, step = first[r] + count[r] - 1, -1
            for c in range(channels):
                total = np.float64(1.0 if product else 0.0)
                for k in range(count[r]):
                    i = begin + k * step
                    # An exclusive scan stores the total before this sample, so nothing is subtracted or divided.
                    before = total
                    total = total * values[i, c] if product else total + values[i, c]
                    out[i, c] = before if exclusive else total


@kernel
def _product_gradient(values, before, grad, first, count, exclusive, out, n_tasks):
    """Gradient of a running product, back to front: rest_i = g_i + x_{i+1} rest_{i+1} (see `op.running_product`).

    If exclusive, g_{i+1} replaces g_i.
    """
    n, channels = first.shape[0], values.shape[1]
    for task in numba.prange(n_tasks):
        for r in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            for c in range(channels):
                behind = np.float64(0.0)
                for i in range(first[r] + count[r] - 1, first[r] - 1, -1):
                    rest = behind if exclusive else grad[i, c] + behind
                    out[i, c] = before[i, c] * rest
                    behind = values[i, c] * rest
                    if exclusive:
                        behind += grad[i, c]


def scan(
    values: Tensor, first: Tensor, count: Tensor, product: bool, exclusive: bool, reverse: bool, fill: float
) -> Tensor:
    """As `reference.scan`, without a graph."""
    out = np.full(tuple(values.shape), fill, array(values).dtype)
    n_tasks = tasks(first.shape[0], 64)
    _scan(array(values), array(first), array(count), product, exclusive, reverse, out, n_tasks)
    return torch.from_numpy(out)


def product_gradient(
    values: Tensor, before: Tensor, grad: Tensor, first: Tensor, count: Tensor, exclusive: bool
) -> Tensor:
    """[B, C]: gradient of a running product with respect to values [B, C].

    before [B, C]: the exclusive product. grad [B, C]: gradient of the result.
    """
    out = np.zeros(tuple(values.shape), array(values).dtype)
    rows = (array(part) for part in (values, before, grad, first, count))
    _product_gradient(*rows, exclusive, out, tasks(first.shape[0], 64))
    return torch.from_numpy(out)

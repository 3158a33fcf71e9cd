"""Compaction with Numba: each task counts its kept samples, then writes them to its own range of the result."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from raymine.kernels._numba import array, kernel, tasks


@kernel
def _count(keep, first, count, kept, per_task):
    n, n_tasks = first.shape[0], per_task.shape[0]
    for task in numba.prange(n_tasks):
        total = 0
        for r in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            found = 0
            for i in range(first[r], first[r] + count[r]):
                found += keep[i]
            kept[r] = found
            total += found
        per_task[task] = total


@kernel
def _fill(keep, first, count, place, index):
    n, n_tasks = first.shape[0], place.shape[0]
    for task in numba.prange(n_tasks):
        put = place[task]
        for r in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            for i in range(first[r], first[r] + count[r]):
                if keep[i]:
                    index[put] = i
                    put += 1


def compact(keep: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """As `reference.compact`."""
    kept_mask, counts = array(keep), array(count)
    first = np.cumsum(counts) - counts
    kept = np.empty_like(counts)
    per_task = np.empty(tasks(counts.shape[0], 64), np.int64)
    _count(kept_mask, first, counts, kept, per_task)
    index = np.empty(int(per_task.sum()), np.int64)
    _fill(kept_mask, first, counts, np.cumsum(per_task) - per_task, index)
    return torch.from_numpy(index), torch.from_numpy(kept)

"""Volume rendering with Numba: one pass along each ray forward, one backward; tasks are ranges of rays.

Gradients in closed form, with v_i = dLoss/dw_i gathered from colour, opacity, depth and the weights themselves:

    dLoss/ds_i = d_i (T_{i+1} v_i - sum over j > i of w_j v_j),    dLoss/dc_i = w_i dLoss/dcolour
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from raymine.kernels._numba import array, kernel, tasks


@kernel
def _forward(
    density, colour, t_start, t_end, first, count, background, stop, out_colour, opacity, depth, weights, n_tasks
):
    n = first.shape[0]
    one = np.float32(1.0)
    for task in numba.prange(n_tasks):
        for r in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            through = one
            red = green = blue = total = distance = np.float32(0.0)
            for i in range(first[r], first[r] + count[r]):
                if through < stop:
                    weights[i] = np.float32(0.0)
                    continue
                keep = np.exp(-density[i] * (t_end[i] - t_start[i]))
                w = through * (one - keep)
                weights[i] = w
                total += w
                distance += w * (t_start[i] + t_end[i]) * np.float32(0.5)
                red += w * colour[i, 0]
                green += w * colour[i, 1]
                blue += w * colour[i, 2]
                through *= keep
            opacity[r], depth[r] = total, distance
            out_colour[r, 0] = red + (one - total) * background[r, 0]
            out_colour[r, 1] = green + (one - total) * background[r, 1]
            out_colour[r, 2] = blue + (one - total) * background[r, 2]


@kernel
def _backward(
    density, colour, t_start, t_end, first, count, background, stop, opacity, weights,
    g_colour, g_opacity, g_depth, g_weights, to_density, to_colour, to_background, n_tasks,
):  # fmt: skip
    n = first.shape[0]
    one, zero = np.float32(1.0), np.float32(0.0)
    for task in numba.prange(n_tasks):
        for r in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            gr, gg, gb = g_colour[r, 0], g_colour[r, 1], g_colour[r, 2]
            rest = g_opacity[r] - (gr * background[r, 0] + gg * background[r, 1] + gb * background[r, 2])
            begin, end = first[r], first[r] + count[r]
            behind = zero
            for i in range(begin, end):
                v = gr * colour[i, 0] + gg * colour[i, 1] + gb * colour[i, 2] + rest + g_weights[i]
                behind += weights[i] * (v + g_depth[r] * (t_start[i] + t_end[i]) * np.float32(0.5))
            through = one
            for i in range(begin, end):
                w, length = weights[i], t_end[i] - t_start[i]
                to_colour[i, 0], to_colour[i, 1], to_colour[i, 2] = w * gr, w * gg, w * gb
                if through < stop:
                    to_density[i] = zero
                    continue
                v = gr * colour[i, 0] + gg * colour[i, 1] + gb * colour[i, 2] + rest + g_weights[i]
                v += g_depth[r] * (t_start[i] + t_end[i]) * np.float32(0.5)
                behind -= w * v
                through *= np.exp(-density[i] * length)
                to_density[i] = length * (through * v - behind)
            left = one - opacity[r]
            to_background[r, 0], to_background[r, 1], to_background[r, 2] = left * gr, left * gg, left * gb


@kernel
def _visible(density, t_start, t_end, first, count, stop, faint, keep, n_tasks):
    n = first.shape[0]
    one = np.float32(1.0)
    for task in numba.prange(n_tasks):
        for r in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            through = one
            for i in range(first[r], first[r] + count[r]):
                if through < stop:
                    keep[i] = False
                    continue
                pass_on = np.exp(-density[i] * (t_end[i] - t_start[i]))
                keep[i] = one - pass_on >= faint
                through *= pass_on


Rows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""density, colour, t_start, t_end, first, count, background."""


def forward(rows: Rows, stop: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.composite`, without a graph."""
    samples, rays = rows[0].shape[0], rows[4].shape[0]
    out = (
        np.empty((rays, 3), np.float32),
        np.empty(rays, np.float32),
        np.empty(rays, np.float32),
        np.empty(samples, np.float32),
    )
    _forward(*(array(row) for row in rows), np.float32(stop), *out, tasks(rays, 64))
    colour, opacity, depth, weights = (torch.from_numpy(part) for part in out)
    return colour, opacity, depth, weights


def backward(
    rows: Rows, stop: float, opacity: Tensor, weights: Tensor, grads: tuple[Tensor, Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of density [B], colour [B, 3] and background [R, 3]."""
    samples, rays = rows[0].shape[0], rows[4].shape[0]
    out = np.empty(samples, np.float32), np.empty((samples, 3), np.float32), np.empty((rays, 3), np.float32)
    saved = (array(opacity), array(weights))
    _backward(
        *(array(row) for row in rows), np.float32(stop), *saved, *(array(g) for g in grads), *out, tasks(rays, 64)
    )
    return torch.from_numpy(out[0]), torch.from_numpy(out[1]), torch.from_numpy(out[2])


def visible(
    density: Tensor, t_start: Tensor, t_end: Tensor, first: Tensor, count: Tensor, stop: float, faint: float
) -> Tensor:
    """As `reference.visible`."""
    keep = np.empty(density.shape[0], np.bool_)
    rows = (array(part) for part in (density, t_start, t_end, first, count))
    _visible(*rows, np.float32(stop), np.float32(faint), keep, tasks(first.shape[0], 64))
    return torch.from_numpy(keep)

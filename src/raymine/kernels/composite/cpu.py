"""Volume rendering with Numba: one pass along each ray for the forward, one for the backward. Tasks are ranges of rays.

Gradients are in closed form. With v_i = dLoss/dw_i, summed over colour, opacity, depth and the weights themselves:

    dLoss/ds_i = d_i (T_{i+1} v_i - sum over j > i of w_j v_j),    dLoss/dc_i = w_i dLoss/dcolour
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from raymine.kernels._numba import array, kernel, tasks

HIDDEN = np.float32(-1.0)
"""Stored instead of the transmittance of a sample that lies behind the early stop."""

_ZERO = np.zeros(1, np.float32)


@kernel
def _forward(
    colour, t_start, t_end, first, count, background, stop, out_colour, opacity, depth, weights, after, n_tasks
):
    """`after` holds exp(-s_i d_i) on entry, and the transmittance after each sample on return."""
    n = first.shape[0]
    one = np.float32(1.0)
    for task in numba.prange(n_tasks):
        for r in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            through = one
            red = green = blue = total = distance = np.float32(0.0)
            for i in range(first[r], first[r] + count[r]):
                if through < stop:
                    weights[i], after[i] = np.float32(0.0), HIDDEN
                    continue
                keep = after[i]
                w = through * (one - keep)
                through *= keep
                weights[i], after[i] = w, through
                total += w
                distance += w * (t_start[i] + t_end[i]) * np.float32(0.5)
                red += w * colour[i, 0]
                green += w * colour[i, 1]
                blue += w * colour[i, 2]
            opacity[r], depth[r] = total, distance
            out_colour[r, 0] = red + (one - total) * background[r, 0]
            out_colour[r, 1] = green + (one - total) * background[r, 1]
            out_colour[r, 2] = blue + (one - total) * background[r, 2]


@kernel
def _backward(
    colour, t_start, t_end, first, count, background, opacity, weights, after,
    g_colour, g_opacity, g_depth, g_weights, has_opacity, has_depth, has_weights,
    to_density, to_colour, to_background, n_tasks,
):  # fmt: skip
    n = first.shape[0]
    one, zero = np.float32(1.0), np.float32(0.0)
    for task in numba.prange(n_tasks):
        for r in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            gr, gg, gb = g_colour[r, 0], g_colour[r, 1], g_colour[r, 2]
            rest = g_opacity[r * has_opacity] - (gr * background[r, 0] + gg * background[r, 1] + gb * background[r, 2])
            behind = zero
            # Back to front, so that `behind` is the sum of w_j v_j over the samples behind sample i.
            for i in range(first[r] + count[r] - 1, first[r] - 1, -1):
                w = weights[i]
                to_colour[i, 0], to_colour[i, 1], to_colour[i, 2] = w * gr, w * gg, w * gb
                if after[i] == HIDDEN:
                    to_density[i] = zero
                    continue
                v = gr * colour[i, 0] + gg * colour[i, 1] + gb * colour[i, 2] + rest + g_weights[i * has_weights]
                v += g_depth[r * has_depth] * (t_start[i] + t_end[i]) * np.float32(0.5)
                to_density[i] = (t_end[i] - t_start[i]) * (after[i] * v - behind)
                behind += w * v
            left = one - opacity[r]
            to_background[r, 0], to_background[r, 1], to_background[r, 2] = left * gr, left * gg, left * gb


@kernel
def _visible(passed, first, count, stop, faint, keep, n_tasks):
    n = first.shape[0]
    one = np.float32(1.0)
    for task in numba.prange(n_tasks):
        for r in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            through = one
            for i in range(first[r], first[r] + count[r]):
                if through < stop:
                    keep[i] = False
                    continue
                keep[i] = one - passed[i] >= faint
                through *= passed[i]


Rows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""density, colour, t_start, t_end, first, count, background."""


def pass_on(density: Tensor, t_start: Tensor, t_end: Tensor) -> Tensor:
    """[B] exp(-s_i d_i), computed by torch: its vectorised exponential takes a quarter of the time of Numba's."""
    return torch.mul(density.detach(), t_start - t_end).exp_()


def forward(rows: Rows, stop: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `reference.composite`, without a graph. A fifth result is the transmittance [B] after each sample.

    `backward` needs it. It is HIDDEN behind the early stop.
    """
    samples, rays = rows[0].shape[0], rows[4].shape[0]
    out = (
        np.empty((rays, 3), np.float32),
        np.empty(rays, np.float32),
        np.empty(rays, np.float32),
        np.empty(samples, np.float32),
        array(pass_on(rows[0], rows[2], rows[3])),
    )
    _forward(*(array(row) for row in rows[1:]), np.float32(stop), *out, tasks(rays, 64))
    colour, opacity, depth, weights, after = (torch.from_numpy(part) for part in out)
    return colour, opacity, depth, weights, after


def backward(
    rows: Rows, opacity: Tensor, weights: Tensor, after: Tensor, grads: tuple[Tensor | None, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of density [B], colour [B, 3] and background [R, 3].

    opacity [R], weights [B] and after [B] are results of `forward`. grads: gradients of colour [R, 3], opacity [R],
    depth [R] and weights [B]; None means 0. For each of the last three that is None, the kernel reads one zero at index
    i * 0, so that no array of zeros is needed.
    """
    samples, rays = rows[0].shape[0], rows[4].shape[0]
    out = np.empty(samples, np.float32), np.empty((samples, 3), np.float32), np.empty((rays, 3), np.float32)
    inputs = (array(part) for part in (*rows[1:], opacity, weights, after))
    to_result = np.zeros((rays, 3), np.float32) if grads[0] is None else array(grads[0])
    others = (_ZERO if grad is None else array(grad) for grad in grads[1:])
    used = (int(grad is not None) for grad in grads[1:])
    _backward(*inputs, to_result, *others, *used, *out, tasks(rays, 64))
    return torch.from_numpy(out[0]), torch.from_numpy(out[1]), torch.from_numpy(out[2])


def visible(
    density: Tensor, t_start: Tensor, t_end: Tensor, first: Tensor, count: Tensor, stop: float, faint: float
) -> Tensor:
    """As `reference.visible`."""
    keep = np.empty(density.shape[0], np.bool_)
    rows = (array(part) for part in (pass_on(density, t_start, t_end), first, count))
    _visible(*rows, np.float32(stop), np.float32(faint), keep, tasks(first.shape[0], 64))
    return torch.from_numpy(keep)

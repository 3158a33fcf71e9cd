"""Loss of each ray and gradient of each sample with Numba: one pass front to back along a ray, one pass back to front.

With v_i = dLoss/dw_i, density s and interval length d, dLoss/ds_i = d_i (T_{i+1} v_i - sum over j > i of w_j v_j), as
in `composite.cpu`. The derivative of the activation is s_i for density and c (1 - c) for a colour channel. Tasks are
ranges of rays.

The distortion (`reference`) adds 2 (c_i (W_<i - W_>i) - (C_<i - C_>i)) + 2/3 w_i (b_i - a_i) to v_i, with W and C the
sums of weights and of weights times position in front of a sample and behind it.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import torch
from torch import Tensor

from raymine.kernels._numba import array, device_function, kernel, tasks
from raymine.kernels.activations import CAP
from raymine.kernels.threads import total

_CAP = np.float32(CAP)
_EMPTY = np.float32(-80.0)
"""Samples with a density pre-activation below this are skipped: their density is negligible in float32."""


@device_function
def _sigmoid(x):
    one = np.float32(1.0)
    return one / (one + np.float32(math.exp(-x)))


@device_function
def _slope(error, delta):
    """Derivative of the loss of one channel with respect to its error."""
    if error > delta:
        return delta
    if error < -delta:
        return -delta
    # NaN fails both comparisons, and is returned here.
    return error if delta < np.inf else np.float32(2.0) * error


@device_function
def _value(error, delta):
    """Loss of one channel: the square, or Huber's loss with threshold `delta` if that is finite."""
    size = abs(error)
    if delta == np.inf:
        return error * error
    if size > delta:
        return delta * (size - np.float32(0.5) * delta)
    return np.float32(0.5) * error * error


@kernel
def _judge(
    raw_colour, raw_density, t_start, t_end, first, count, background, target, share, delta, stop,
    shaping, gradient, size, loss, error, n_tasks,
):  # fmt: skip
    """`gradient` [B, 4] is also scratch: the first pass stores colour and transmittance of each sample in it.

    shaping: (distortion, fade), or None where both are 0. Numba leaves out what None makes unreachable.
    """
    n = first.shape[0]
    zero, one, two, three = np.float32(0.0), np.float32(1.0), np.float32(2.0), np.float32(3.0)
    for task in numba.prange(n_tasks):
        for r in range(task * n // n_tasks, (task + 1) * n // n_tasks):
            begin, end = first[r], first[r] + count[r]
            through = one
            red = green = blue = zero
            if shaping is not None:
                mass = moment = spread = zero
            last = begin
            for i in range(begin, end):
                if through < stop:
                    break
                last = i + 1
                if raw_density[i] < _EMPTY:
                    continue
                optical = np.float32(math.exp(min(raw_density[i] - one, _CAP))) * (t_end[i] - t_start[i])
                keep = np.float32(math.exp(-optical))
                w = through * (one - keep)
                through *= keep
                a, b, c = _sigmoid(raw_colour[i, 0]), _sigmoid(raw_colour[i, 1]), _sigmoid(raw_colour[i, 2])
                red, green, blue = red + w * a, green + w * b, blue + w * c
                gradient[i, 0], gradient[i, 1], gradient[i, 2], gradient[i, 3] = a, b, c, through
                if shaping is not None:
                    at, long = _on_curve(t_start[i], t_end[i])
                    spread += two * w * (at * mass - moment) + w * w * long / three
                    mass, moment = mass + w, moment + w * at
            e0 = red + through * background[r, 0] - target[r, 0]
            e1 = green + through * background[r, 1] - target[r, 1]
            e2 = blue + through * background[r, 2] - target[r, 2]
            error[r] = (e0 * e0 + e1 * e1 + e2 * e2) / np.float32(3.0)
            loss[r] = share[r] * (_value(e0, delta) + _value(e1, delta) + _value(e2, delta))
            if shaping is not None:
                factor = three * share[r] * shaping[0]
                loss[r] += factor * spread
                mass_behind = moment_behind = zero
            g0, g1, g2 = share[r] * _slope(e0, delta), share[r] * _slope(e1, delta), share[r] * _slope(e2, delta)
            behind = zero
            rest = -(g0 * background[r, 0] + g1 * background[r, 1] + g2 * background[r, 2])
            for i in range(last, end):
                gradient[i, 0] = gradient[i, 1] = gradient[i, 2] = gradient[i, 3] = size[i] = zero
            for i in range(last - 1, begin - 1, -1):
                if raw_density[i] < _EMPTY:
                    gradient[i, 0] = gradient[i, 1] = gradient[i, 2] = gradient[i, 3] = size[i] = zero
                    continue
                a, b, c, after = gradient[i, 0], gradient[i, 1], gradient[i, 2], gradient[i, 3]
                optical = np.float32(math.exp(min(raw_density[i] - one, _CAP))) * (t_end[i] - t_start[i])
                # w_i = T_i - T_{i+1} with the stored T_i: computing T_i = T_{i+1} / keep would lose all digits if the
                # sample is opaque.
                w = before_of(gradient, raw_density, i, begin) - after
                v = g0 * a + g1 * b + g2 * c + rest
                if shaping is not None:
                    at, long = _on_curve(t_start[i], t_end[i])
                    # What lies in front, less what lies behind: the total less the sample itself and twice the latter.
                    front = mass - w - two * mass_behind
                    front_moment = moment - w * at - two * moment_behind
                    v += factor * two * (at * front - front_moment + w * long / three)
                    mass_behind, moment_behind = mass_behind + w, moment_behind + w * at
                gradient[i, 0] = w * g0 * a * (one - a)
                gradient[i, 1] = w * g1 * b * (one - b)
                gradient[i, 2] = w * g2 * c * (one - c)
                gradient[i, 3] = optical * (after * v - behind)
                behind += w * v
                if shaping is not None:
                    near = (t_start[i] + t_end[i]) * np.float32(0.5)
                    if near < shaping[1]:
                        near /= shaping[1]
                        for k in range(4):
                            gradient[i, k] *= near * near
                square = gradient[i, 0] ** 2 + gradient[i, 1] ** 2 + gradient[i, 2] ** 2 + gradient[i, 3] ** 2
                size[i] = np.sqrt(square) if square < np.inf else zero


@device_function
def _on_curve(start, end):
    """The middle and the length of an interval of distances on the curve t / (1 + t)."""
    one = np.float32(1.0)
    near, far = start / (one + start), end / (one + end)
    return (near + far) * np.float32(0.5), far - near


@device_function
def before_of(gradient, raw_density, i, begin):
    """Transmittance before sample i: the value stored for the nearest sample in front of it that was not skipped."""
    j = i - 1
    while j >= begin and raw_density[j] < _EMPTY:
        j -= 1
    return gradient[j, 3] if j >= begin else np.float32(1.0)


def judge_packed(
    colour: Tensor,
    density: Tensor,
    t_start: Tensor,
    t_end: Tensor,
    first: Tensor,
    count: Tensor,
    background: Tensor,
    target: Tensor,
    weight: Tensor,
    delta: float,
    stop: float,
    distortion: float = 0.0,
    fade: float = 0.0,
    divisor: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.judge`."""
    samples, rays = density.shape[0], first.shape[0]
    share = weight / (3 * (total(weight) if divisor is None else divisor).clamp_min(1))
    out = (
        np.empty((samples, 4), np.float32),
        np.empty(samples, np.float32),
        np.empty(rays, np.float32),
        np.empty(rays, np.float32),
    )
    rows = (colour, density, t_start, t_end, first, count, background, target, share)
    shaping = (np.float32(distortion), np.float32(fade)) if distortion > 0 or fade > 0 else None
    _judge(*(array(row) for row in rows), np.float32(delta), np.float32(stop), shaping, *out, tasks(rays, 64))
    gradient, size, loss, error = (torch.from_numpy(part) for part in out)
    return gradient, size, loss, error

"""Rendering of the hash-grid field with Numba: field, activations and compositing in one kernel.

It follows rays as `infer` of `cpu.py` does, and adds each sample to its ray at once. Nothing is stored for a sample,
and no torch function runs between the kernels: beside other busy processes each of those waits for its threads (a view
of 106,400 rays then took 4 to 8 s instead of 1.3 s on 2 cores).
"""

from __future__ import annotations

import math
from functools import cache

import numba
import numpy as np
import torch
from torch import Tensor

from raymine.kernels._numba import Kernel, array, device_function, kernel, tasks
from raymine.kernels.activations import CAP
from raymine.kernels.hash_grid.cpu import layout
from raymine.kernels.hash_grid.spec import GridSpec
from raymine.kernels.ngp_step.inputs import WIDTH, Box
from raymine.kernels.ngp_step.layers import dense_layer, encode_chunk, encode_direction, padded, place
from raymine.kernels.packed import Samples

TILE, STRIDE = 16, 8
"""As in `cpu.py`: rays that are processed together, and samples of each ray per round."""


@device_function
def _sigmoid(x):
    return np.float32(1.0) / (np.float32(1.0) + np.float32(math.exp(-x)))


@cache
def _render(features: int, n_levels: int, sizes: tuple[int, ...], middle: int) -> Kernel:
    """The compiled kernel for a shape of the model; arguments as in `cpu._infer`."""
    encoding, hidden_size, geometry_size, colour_in, colour_hidden = sizes
    only = middle < 0
    cap = np.float32(CAP)

    @kernel
    def render(
        origins, directions, low, high, unbounded, t_start, t_end, first, count, geometry,
        table, scales, resolutions, entries, offsets, dense, w1, w2, c1, cs, c3,
        stop, faint, background, colour, opacity, depth, scratch, places,
    ):  # fmt: skip
        rays = first.shape[0]
        zero, one = np.float32(0.0), np.float32(1.0)
        n_tasks = scratch.shape[0]
        for task in numba.prange(n_tasks):
            enc, hidden, geo, colour_x = scratch[task, 0], scratch[task, 1], scratch[task, 2], scratch[task, 3]
            a, b, out, cube = scratch[task, 4], scratch[task, 5], scratch[task, 6], scratch[task, 7]
            encoded, through, weight = scratch[task, 8], scratch[task, 9, :, 0], scratch[task, 9, :, 1]
            # What a ray lets through of its visible samples alone: the transmittance that weights are made of.
            left = scratch[task, 9, :, 2]
            owner, asked, next_one = places[task, 0], places[task, 1], places[task, 2]
            last = (task + 1) * rays // n_tasks
            for tile in range(task * rays // n_tasks, last, TILE):
                here = min(TILE, last - tile)
                for k in range(here):
                    r = tile + k
                    through[k], left[k], next_one[k] = one, one, first[r]
                    colour[r, 0] = colour[r, 1] = colour[r, 2] = opacity[r] = depth[r] = zero
                    if count[r] > 0:
                        encode_direction(directions[r, 0], directions[r, 1], directions[r, 2], encoded[k])
                while True:
                    n = 0
                    for k in range(here):
                        r = tile + k
                        begin = next_one[k]
                        asked[k] = min(STRIDE, first[r] + count[r] - begin)
                        if through[k] < stop:
                            asked[k] = 0
                        for i in range(begin, begin + asked[k]):
                            t = (t_start[i] + t_end[i]) * np.float32(0.5)
                            cube[n, 0], cube[n, 1], cube[n, 2] = place(
                                origins[r, 0] + t * directions[r, 0],
                                origins[r, 1] + t * directions[r, 1],
                                origins[r, 2] + t * directions[r, 2],
                                low, high, unbounded,
                            )  # fmt: skip
                            n += 1
                    if n == 0:
                        break
                    encode_chunk(cube, n, table, scales, resolutions, entries, offsets, dense, enc, features, n_levels)
                    dense_layer(enc, n, w1, hidden, encoding, hidden_size, True)
                    dense_layer(hidden, n, w2, geo, hidden_size, geometry_size, False)
                    seen = q = 0
                    for k in range(here):
                        for i in range(next_one[k], next_one[k] + asked[k]):
                            optical = np.float32(math.exp(min(geo[q, 0] - one, cap))) * (t_end[i] - t_start[i])
                            passed = np.float32(math.exp(-optical))
                            if not (through[k] < stop or one - passed < faint):
                                w = left[k] * (one - passed)
                                left[k] *= passed
                                opacity[tile + k] += w
                                depth[tile + k] += w * (t_start[i] + t_end[i]) * np.float32(0.5)
                                for j in range(geometry):
                                    colour_x[seen, j] = geo[q, j]
                                for j in range(WIDTH):
                                    colour_x[seen, geometry + j] = encoded[k, j]
                                weight[seen], owner[seen] = w, tile + k
                                seen += 1
                            through[k] *= passed
                            q += 1
                        next_one[k] += asked[k]
                    if only:
                        dense_layer(colour_x, seen, c1, out, colour_in, 8, False)
                    else:
                        dense_layer(colour_x, seen, c1, a, colour_in, colour_hidden, True)
                        for m in range(middle):
                            dense_layer(a, seen, cs[m], b, colour_hidden, colour_hidden, True)
                            for q in range(seen):
                                for j in range(colour_hidden):
                                    a[q, j] = b[q, j]
                        dense_layer(a, seen, c3, out, colour_hidden, 8, False)
                    for q in range(seen):
                        for j in range(3):
                            colour[owner[q], j] += weight[q] * _sigmoid(out[q, j])
                for k in range(here):
                    r = tile + k
                    for j in range(3):
                        colour[r, j] += (one - opacity[r]) * background[j]

    return render


def render(
    table: Tensor,
    spec: GridSpec,
    density: tuple[Tensor, ...],
    colour: tuple[Tensor, ...],
    box: Box,
    origins: Tensor,
    directions: Tensor,
    samples: Samples,
    background: Tensor,
    stop: float,
    faint: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.render`."""
    w1, w2, c1 = padded(density[0]), padded(density[1]), padded(colour[0])
    # An array for every layer, also where there is none: see `cpu.infer`.
    inner, last = colour[1:-1], padded(colour[-1])
    stack = np.stack([padded(weight) for weight in inner]) if inner else np.zeros((0, 8, 8), np.float32)
    sizes = (w1.shape[0], w1.shape[1], w2.shape[1], c1.shape[0], c1.shape[1])
    rays = samples.n_rays
    out = np.empty((rays, 3), np.float32), np.empty(rays, np.float32), np.empty(rays, np.float32)
    n_tasks = tasks(rays, 16)
    # Zeros, because columns beyond the width of a layer are read but never written.
    scratch = np.zeros((n_tasks, 10, TILE * STRIDE, max(*sizes, WIDTH)), np.float32)
    places = np.zeros((n_tasks, 3, TILE * STRIDE), np.int64)
    _render(spec.features, spec.levels, sizes, len(colour) - 2)(
        array(origins), array(directions), array(box.low), array(box.high), box.unbounded,
        array(samples.t_start), array(samples.t_end), array(samples.first), array(samples.count),
        density[1].shape[1], array(table), *layout(spec), w1, w2, c1, stack, last,
        np.float32(stop), np.float32(faint), array(background), *out, scratch, places,
    )  # fmt: skip
    return torch.from_numpy(out[0]), torch.from_numpy(out[1]), torch.from_numpy(out[2])

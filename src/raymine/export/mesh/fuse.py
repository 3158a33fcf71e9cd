"""Fuse the depths that training views see into a signed distance on a grid.

A field of few photos is fuzzy: its density has many crossings of any threshold, but what its rays see is one surface.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit

from raymine.export.model import Box, ExportModel, Progress, no_progress

from .extract import Grid, require

_VIEWS = 48
"""Training views, evenly spread, whose depths are fused."""

_RAYS = 1_000_000
"""Rays of all views together."""

_REACH = 4.0
"""Cells: farther from what a view sees, a distance counts as this in front of it and as nothing behind it."""

_SMOOTH = 1.0
"""Standard deviation, in cells, of the Gaussian over the distances. On a capture of 24 photos, with a grid of 256, it
lowered the share of faces with a corner whose normal points the other way from 11 to 0.4 %, and pictures gained 0.3 dB.
"""


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator,unused-ignore]
def add_view(
    total: np.ndarray, count: np.ndarray, depth: np.ndarray, frame: np.ndarray, lens: np.ndarray, reach: float
) -> None:
    """Add what one view sees to the sums [X, Y, Z] of distances and to their number.

    depth [H, W]: distance along the rays, inf where they hit nothing. frame [3, 4]: grid coordinates -> coordinates of
    the camera, which looks along -z. lens: fx, fy, cx, cy in pixels. Distances are positive in front of the surface.
    """
    height, width = depth.shape
    for i in range(total.shape[0]):
        for j in range(total.shape[1]):
            for k in range(total.shape[2]):
                x = frame[0, 0] * i + frame[0, 1] * j + frame[0, 2] * k + frame[0, 3]
                y = frame[1, 0] * i + frame[1, 1] * j + frame[1, 2] * k + frame[1, 3]
                z = -(frame[2, 0] * i + frame[2, 1] * j + frame[2, 2] * k + frame[2, 3])
                if z <= 1e-9:
                    continue
                u, v = lens[0] * x / z + lens[2] - 0.5, lens[1] * -y / z + lens[3] - 0.5
                if not (0 <= u <= width - 1 and 0 <= v <= height - 1):
                    continue
                hit = _depth_at(depth, u, v, reach)
                distance = hit - math.sqrt(x * x + y * y + z * z)
                if distance >= -reach:
                    total[i, j, k] += min(distance, reach)
                    count[i, j, k] += 1


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator,unused-ignore]
def _depth_at(depth: np.ndarray, u: float, v: float, reach: float) -> float:
    """The depth between four pixels; that of the nearest one where they see different things."""
    i, j = min(int(v), max(0, depth.shape[0] - 2)), min(int(u), max(0, depth.shape[1] - 2))
    low, high = min(i + 1, depth.shape[0] - 1), min(j + 1, depth.shape[1] - 1)
    a, b, c, d = depth[i, j], depth[i, high], depth[low, j], depth[low, high]
    p, q = v - i, u - j
    if max(a, b, c, d) - min(a, b, c, d) < reach:
        return (1 - p) * ((1 - q) * a + q * b) + p * ((1 - q) * c + q * d)
    return depth[low if p > 0.5 else i, high if q > 0.5 else j]


def fuse(model: ExportModel, box: Box, resolution: int, progress: Progress = no_progress) -> Grid:
    """The fused distance on a grid over `box`, in multiples of its reach, positive inside of things.

    Points that no view sees, since they are behind a surface or beside all pictures, count as inside, and are not
    `observed`.
    """
    cell = float(box.sides.max()) / (resolution - 1)
    shape = tuple(max(2, int(np.ceil(side / cell - 1e-6)) + 1) for side in box.sides)
    total, count = np.zeros(shape, np.float32), np.zeros(shape, np.uint16)
    place = box.frame @ np.diag([*(1 / (np.array(shape) - 1)), 1.0])
    views = list(model.spread_views(_VIEWS))
    for done, view in enumerate(views):
        first = model.views[view]
        longest = math.ceil(math.sqrt(_RAYS / len(views) * max(first.width / first.height, first.height / first.width)))
        camera, rays = model.view_rays(view, longest)
        hits = model.trace(rays)
        depth = torch.where(hits.opacity > 0.5, hits.depth, torch.inf).view(camera.height, camera.width)
        pose = model.poses[view]
        frame = np.concatenate((pose[:, :3].T, -pose[:, :3].T @ pose[:, 3:]), 1) @ place
        lens = np.array([camera.fx, camera.fy, camera.cx, camera.cy])
        add_view(total, count, depth.cpu().double().numpy(), frame, lens, _REACH * cell)
        progress("Fusing depths", done + 1, len(views))
    observed = count > 0
    values = np.where(observed, -total / np.maximum(count, 1) / (_REACH * cell), 1.0).astype(np.float32)
    values = require("scipy.ndimage").gaussian_filter(values, _SMOOTH)
    return Grid(values, box, cell, observed)

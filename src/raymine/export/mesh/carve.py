"""Which cells of a grid the training cameras see as empty, found by following their rays up to what they hit."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit

from raymine.export.model import Box, ExportModel, Progress, no_progress

_VIEWS, _LONGEST = 32, 200


@njit(cache=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator,unused-ignore]
def follow(seen: np.ndarray, starts: np.ndarray, steps: np.ndarray, near: np.ndarray, far: np.ndarray) -> None:
    """Mark cells [X, Y, Z] along rays start + t step, in grid coordinates, for t from near to far [R].

    Points lie less than a cell apart, so a ray may miss a cell of which it cuts a corner.
    """
    for ray in range(starts.shape[0]):
        enter, leave = near[ray], far[ray]
        for axis in range(3):
            at, by = starts[ray, axis], steps[ray, axis]
            if abs(by) < 1e-12:
                if at < -0.5 or at > seen.shape[axis] - 0.5:
                    leave = -1.0
                continue
            a, b = (-0.5 - at) / by, (seen.shape[axis] - 0.5 - at) / by
            enter, leave = max(enter, min(a, b)), min(leave, max(a, b))
        length = np.sqrt(steps[ray, 0] ** 2 + steps[ray, 1] ** 2 + steps[ray, 2] ** 2)
        delta, t = 0.7 / length, enter
        while t < leave:
            i = min(max(int(np.floor(starts[ray, 0] + t * steps[ray, 0] + 0.5)), 0), seen.shape[0] - 1)
            j = min(max(int(np.floor(starts[ray, 1] + t * steps[ray, 1] + 0.5)), 0), seen.shape[1] - 1)
            k = min(max(int(np.floor(starts[ray, 2] + t * steps[ray, 2] + 0.5)), 0), seen.shape[2] - 1)
            seen[i, j, k] = True
            t += delta


def seen_empty(
    model: ExportModel, box: Box, shape: tuple[int, ...], cell: float, progress: Progress = no_progress
) -> np.ndarray:
    """[X, Y, Z] bool: points of the grid that rays of training views pass before they hit something."""
    seen = np.zeros(shape, np.bool_)
    inverse, scale = np.linalg.inv(box.frame), np.array(shape) - 1
    views = list(model.spread_views(_VIEWS))
    nothing = torch.zeros(3, device=model.device)
    for done, view in enumerate(views):
        _, rays = model.view_rays(view, _LONGEST)
        out = model.renderer.render(rays, nothing)
        starts = (rays.origins.cpu().double().numpy() @ inverse[:3, :3].T + inverse[:3, 3]) * scale
        steps = (rays.directions.cpu().double().numpy() @ inverse[:3, :3].T) * scale
        far = torch.where(out.opacity > 0.5, out.depth - cell, rays.far).cpu().double().numpy()
        follow(seen, starts, steps, rays.near.cpu().double().numpy(), far)
        progress("Looking for cavities", done + 1, len(views))
    return seen

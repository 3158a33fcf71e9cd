"""Pictures of one held-out view for the page: truth, prediction, error, and a map of the hard rays."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from raymine import pictures
from raymine.engines import renderer_for
from raymine.pixels import Pixels
from raymine.step import TrainData, TrainState
from raymine.step.hardness import hardness_picture

FOLDER = "pictures"
SIDE = 320
"""Longest side of a picture in pixels; larger views are subsampled."""


def write_pictures(state: TrainState, views: TrainData, folder: Path, policy: str) -> dict[str, str]:
    """Render the middle view and write its pictures to `folder`/pictures; return their file names by kind."""
    index = len(views.rig) // 2
    rows, columns = _grid(views, index)
    truth, predicted = _pair(state, views, (index, rows, columns))
    stem = policy.replace(":", "-")
    made = {
        "truth": ("truth.png", truth),
        "predicted": (f"{stem}-predicted.png", predicted),
        "error": (f"{stem}-error.png", pictures.error_picture(predicted, truth)),
        "hard": (f"{stem}-hard.png", pictures.hardness_picture(truth, _hardness(state, views, (index, rows, columns)))),
    }
    for name, picture in made.values():
        pictures.write_png(folder / FOLDER / name, picture)
    return {kind: name for kind, (name, _) in made.items()}


def _grid(views: TrainData, index: int) -> tuple[Tensor, Tensor]:
    """Rows and columns of a view: every n-th, so that there are at most `SIDE` of each."""
    height, width = (int(v) for v in views.images.sizes[index])
    stride = max(1, math.ceil(max(height, width) / SIDE))
    return torch.arange(stride // 2, height, stride), torch.arange(stride // 2, width, stride)


def _pair(state: TrainState, views: TrainData, grid: tuple[int, Tensor, Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Truth and prediction, [H, W, 3] float in 0..1."""
    index, rows, columns = grid
    y, x = (axis.reshape(-1) for axis in torch.meshgrid(rows, columns, indexing="ij"))
    image = torch.full_like(x, index)
    background = torch.tensor(views.background or (0.0, 0.0, 0.0))
    rgba = views.images.gather(image, y, x)[0].cpu()
    truth = torch.lerp(background.expand(len(x), 3), rgba[:, :3], rgba[:, 3:])
    rays = views.rig.rays_for_pixels(*(part.to(state.device) for part in (image, x, y)))
    colour = renderer_for(state).render(rays, background.to(state.device)).colour.detach().cpu().float()
    shape = (len(rows), len(columns), 3)
    return truth.reshape(shape).numpy(), colour.nan_to_num(nan=0.0).clamp(0.0, 1.0).reshape(shape).numpy()


def _hardness(state: TrainState, views: TrainData, grid: tuple[int, Tensor, Tensor]) -> np.ndarray:
    """The hardness of the pixels of a grid, [H, W]."""
    index, rows, columns = grid
    y, x = (axis.reshape(-1) for axis in torch.meshgrid(rows, columns, indexing="ij"))
    found = hardness_picture(state, views, Pixels(torch.full_like(x, index), y, x))
    assert found is not None
    return found.reshape(len(rows), len(columns))

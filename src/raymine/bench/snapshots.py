"""Pictures of one held-out view for the page: truth, prediction, error, and a map of the hard rays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from raymine import pictures
from raymine.engines import renderer_for
from raymine.step import TrainData, TrainState
from raymine.step.hardness import hard_view, spread_pixels

FOLDER = "pictures"
SIDE = 320
"""Longest side of a picture in pixels; larger views are subsampled."""


def write_pictures(state: TrainState, views: TrainData, folder: Path, policy: str) -> dict[str, str]:
    """Render the middle view and write its pictures to `folder`/pictures; return their file names by kind."""
    index = len(views.rig) // 2
    hard = hard_view(state, views, index, SIDE, trained=False)
    assert hard is not None
    predicted = _predicted(state, views, index)
    stem = policy.replace(":", "-")
    made = {
        "truth": ("truth.png", hard.photo),
        "predicted": (f"{stem}-predicted.png", predicted),
        "error": (f"{stem}-error.png", pictures.error_picture(predicted, hard.photo)),
        "hard": (f"{stem}-hard.png", hard.picture()),
    }
    for name, picture in made.values():
        pictures.write_png(folder / FOLDER / name, picture)
    return {kind: name for kind, (name, _) in made.items()}


def _predicted(state: TrainState, views: TrainData, index: int) -> np.ndarray:
    """The prediction of the pixels that `hard_view` looks at, [H, W, 3] float in 0..1."""
    pixels, shape = spread_pixels(views, index, SIDE)
    image, y, x = (part.to(state.device) for part in pixels)
    background = torch.tensor(views.background or (0.0, 0.0, 0.0), device=state.device)
    colour = renderer_for(state).render(views.rig.rays_for_pixels(image, x, y), background).colour
    return colour.detach().cpu().float().nan_to_num(nan=0.0).clamp(0.0, 1.0).reshape(*shape, 3).numpy()

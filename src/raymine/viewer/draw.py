"""Draw what a client sees: colour, depth or opacity, within a crop box, in pieces that can be abandoned.

What compares with a photo, errors and hard samples, is drawn as the training view that is nearest to the client's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch

from raymine import pictures
from raymine.contracts import Camera, Rays, Renderer, Scene
from raymine.export import Abandoned, View, render_view
from raymine.export.model import within
from raymine.toolkit.boxes import intersect

from .photos import Photos

Kind = Literal["colour", "depth", "opacity", "error", "hard"]

OF_PHOTOS: tuple[Kind, ...] = ("error", "hard")
"""What is drawn of the nearest training view instead of the client's own."""

Box = tuple[tuple[float, float, float], tuple[float, float, float]]
"""Lowest and highest corner."""

_BARS = 128
"""The grey of what a photo leaves of the canvas: neither the black of depth nor the white of a background."""


@dataclass(frozen=True)
class Look:
    """What is drawn. crop: only what is inside this box. time: in 0..1, of a dynamic scene. longest: side in pixels.

    `error`: the difference to the photo of the nearest training view. `hard`: a heat map over that photo of the samples
    that hard mining would choose (`step.hardness`); the crop box does not apply to it.
    """

    kind: Kind = "colour"
    crop: Box | None = None
    time: float | None = None
    longest: int = 1024


def draw(
    renderer: Renderer,
    scene: Scene,
    camera: Camera,
    pose: np.ndarray,
    look: Look,
    *,
    device: torch.device,
    unwanted: Callable[[], bool] = lambda: False,
) -> View | None:
    """Render a view; None if it became unwanted meanwhile."""
    try:
        return render_view(
            renderer,
            camera,
            pose,
            scene.bounds,
            background=scene.background or (0.0, 0.0, 0.0),
            time=look.time,
            device=device,
            change=None if look.crop is None else partial(cropped, box=look.crop),
            unwanted=unwanted,
        )
    except Abandoned:
        return None


def cropped(rays: Rays, box: Box) -> Rays:
    """The parts of rays that lie in a box; a ray that misses it has no length."""
    corners = rays.origins.new_tensor([[*box[0], *box[1]]])
    return within(rays, intersect(rays.origins, rays.directions, corners))


def error_of(
    renderer: Renderer,
    photos: Photos,
    number: int,
    look: Look,
    *,
    longest: int,
    device: torch.device,
    unwanted: Callable[[], bool] = lambda: False,
) -> np.ndarray | None:
    """The error [H, W, 3] uint8 of training view `number`, at most `longest` pixels a side; None if it is unwanted."""
    frame, photo = photos.frame(number), photos.photo(number)
    own = photos.scene.cameras[frame.camera]
    factor = min(1.0, longest / max(own.width, own.height))
    camera = own.resized(max(1, round(own.width * factor)), max(1, round(own.height * factor)))
    look = replace(look, time=frame.time)
    view = draw(renderer, photos.scene, camera, frame.pose, look, device=device, unwanted=unwanted)
    if view is None:
        return None
    rows = (np.arange(camera.height) * photo.shape[0]) // camera.height
    columns = (np.arange(camera.width) * photo.shape[1]) // camera.width
    return pictures.error_picture(view.colour, photo[rows][:, columns])


def letterboxed(picture: np.ndarray, canvas: tuple[int, int]) -> np.ndarray:
    """A picture [H, W, 3] uint8 with bars beside or above it, in the proportions of a canvas (width, height).

    viser stretches a picture over its canvas, whatever the proportions of the two.
    """
    height, width = picture.shape[:2]
    wide = max(width, round(height * canvas[0] / canvas[1]))
    high = max(height, round(width * canvas[1] / canvas[0]))
    made = np.full((high, wide, 3), _BARS, dtype=np.uint8)
    top, left = (high - height) // 2, (wide - width) // 2
    made[top : top + height, left : left + width] = picture
    return made

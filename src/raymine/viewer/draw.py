"""Draw what a client sees: colour, depth or opacity, within a crop box, in pieces that can be abandoned."""

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
from raymine.toolkit.boxes import intersect

Kind = Literal["colour", "depth", "opacity", "error"]

Box = tuple[tuple[float, float, float], tuple[float, float, float]]
"""Lowest and highest corner."""

_PIECE = 1 << 15
"""Rays between two looks at whether the picture is still wanted: on 2 cores about 0.1 s."""


@dataclass(frozen=True)
class Look:
    """What is drawn. crop: only what is inside this box. time: in 0..1, of a dynamic scene. longest: side in pixels.

    error is the difference to the photo of the nearest training view, which is drawn instead of the client's view.
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
            piece=_PIECE if device.type == "cpu" else 1 << 20,
            change=None if look.crop is None else partial(cropped, box=look.crop),
            unwanted=unwanted,
        )
    except Abandoned:
        return None


def cropped(rays: Rays, box: Box) -> Rays:
    """The parts of rays that lie in a box; a ray that misses it has no length."""
    corners = rays.origins.new_tensor([[*box[0], *box[1]]])
    crossing = intersect(rays.origins, rays.directions, corners)
    hit = crossing.hit[:, 0]
    near = torch.maximum(rays.near, torch.where(hit, crossing.t_near[:, 0], rays.far))
    far = torch.minimum(rays.far, torch.where(hit, crossing.t_far[:, 0], rays.near))
    return replace(rays, near=near, far=torch.maximum(near, far))


def picture_of(view: View, kind: Kind) -> np.ndarray:
    """A view as a picture [H, W, 3] uint8."""
    if kind == "depth":
        return pictures.depth_picture(view.depth, view.opacity)
    if kind == "opacity":
        return pictures.opacity_picture(view.opacity)
    return pictures.to_uint8(view.colour)

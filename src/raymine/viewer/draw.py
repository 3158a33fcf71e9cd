"""Draw what a client sees: colour, depth or opacity, within a crop box, in pieces that can be abandoned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from raymine import pictures
from raymine.contracts import Camera, Rays, Renderer, Scene
from raymine.export import View
from raymine.rays import rays_for_camera
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
    background = torch.tensor(scene.background or (0.0, 0.0, 0.0), dtype=torch.float32, device=device)
    shape, n = (camera.height, camera.width), camera.height * camera.width
    colour, opacity, depth = (torch.empty(n, *tail) for tail in ((3,), (), ()))
    piece = _PIECE if device.type == "cpu" else 1 << 20
    for first in range(0, n, piece):
        if unwanted():
            return None
        span = range(first, min(first + piece, n))
        rays = rays_for_camera(camera, pose, scene.bounds, time=look.time, device=device, pixels=span)
        found = renderer.render(rays if look.crop is None else cropped(rays, look.crop), background)
        at = slice(span.start, span.stop)
        for values, made in ((colour, found.colour), (opacity, found.opacity)):
            values[at] = made.detach().float().nan_to_num(nan=0.0).clamp(0.0, 1.0)
        depth[at] = found.depth.detach().float().nan_to_num(nan=0.0)
    return View(colour.view(*shape, 3).numpy(), opacity.view(shape).numpy(), depth.view(shape).numpy())


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

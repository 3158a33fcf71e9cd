"""Render the views of a camera path as pictures of colour, depth and opacity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from raymine import pictures
from raymine.contracts import Bounds, Rays, Renderer
from raymine.rays import rays_for_camera

from .paths import CameraPath

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class FramePictures:
    """The pictures of one rendered view, each [H, W, 3] uint8."""

    colour: np.ndarray
    depth: np.ndarray
    opacity: np.ndarray


def render_path(
    renderer: Renderer,
    path: CameraPath,
    bounds: Bounds,
    *,
    background: tuple[float, float, float],
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Iterator[FramePictures]:
    """Yield the views of `path` in order; only one is in memory at a time.

    The first view with something in it sets the depth scale, so that a video does not flicker. background: colour in
    0..1. device: of the rays for the renderer. progress: called with (done, total) after each view.
    """
    backdrop = torch.tensor(background, dtype=torch.float32, device=device)
    limits: tuple[float, float] | None = None
    for index in range(len(path)):
        camera = path.cameras[index]
        rendered = renderer.render(_rays(path, index, bounds, device), backdrop)
        shape = (camera.height, camera.width)
        colour = rendered.colour.detach().cpu().float().reshape(*shape, 3).numpy()
        depth = rendered.depth.detach().cpu().float().reshape(shape).numpy()
        opacity = rendered.opacity.detach().cpu().float().reshape(shape).numpy()
        if limits is None and bool((opacity > 0.5).any()):
            near, far = pictures.depth_range(depth, opacity)
            limits = (0.8 * near, 1.25 * far)
        yield FramePictures(
            pictures.to_uint8(colour),
            pictures.depth_picture(depth, opacity, limits),
            pictures.opacity_picture(opacity),
        )
        if progress is not None:
            progress(index + 1, len(path))


def _rays(path: CameraPath, index: int, bounds: Bounds, device: torch.device | str) -> Rays:
    time = None if path.times is None else float(path.times[index])
    return rays_for_camera(path.cameras[index], path.poses[index], bounds, time=time, device=device)

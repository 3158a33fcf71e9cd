"""Render views of a camera: one, or all views of a camera path as pictures of colour, depth and opacity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from raymine import pictures
from raymine.contracts import Bounds, Camera, Rays, Renderer
from raymine.errors import ConfigError
from raymine.files import expanded
from raymine.rays import rays_for_camera

from .paths import CameraPath, require_size

PictureKind = Literal["colour", "depth", "opacity"]
Progress = Callable[[int, int], None]

_PIECE = 1 << 20
"""Rays that are made and rendered at a time: 32 MB. A larger picture is rendered in several pieces."""
WATCHED_PIECE = 1 << 15
"""The same on a CPU if the picture may become unwanted meanwhile: about 0.1 s on 2 cores."""


@dataclass(frozen=True, eq=False)
class View:
    """A rendered view: colour [H, W, 3] in 0..1, opacity [H, W] in 0..1, depth [H, W] in world units, all float32.

    Depth is the mean distance along the ray, weighted by the rendering weights; 0 where the ray hits nothing.
    """

    colour: np.ndarray
    opacity: np.ndarray
    depth: np.ndarray

    def __repr__(self) -> str:
        height, width = self.opacity.shape
        return f"View({width}x{height}, mean opacity {self.opacity.mean():.2f})"

    def save(self, path: str | Path, kind: PictureKind = "colour") -> Path:
        """Write the colour, the depth or the opacity as a PNG picture; return its path."""
        target = expanded(path)
        if target.suffix.lower() != ".png":
            raise ConfigError(f"A view is saved as PNG; `path` must end in .png, got {str(path)!r}.")
        if kind not in get_args(PictureKind):
            raise ConfigError(f"`kind` must be one of {', '.join(get_args(PictureKind))}, got {kind!r}.")
        pictures.write_png(target, self.picture(kind))
        return target

    def picture(self, kind: PictureKind = "colour") -> np.ndarray:
        """The colour, the depth or the opacity as a picture [H, W, 3] uint8."""
        if kind == "depth":
            return pictures.depth_picture(self.depth, self.opacity)
        return pictures.opacity_picture(self.opacity) if kind == "opacity" else pictures.to_uint8(self.colour)


@dataclass(frozen=True, eq=False)
class FramePictures:
    """The pictures of one rendered view, each [H, W, 3] uint8, computed when they are asked for.

    depth_limits: nearest and farthest distance of the depth picture; None takes those of the view.
    """

    view: View
    depth_limits: tuple[float, float] | None = None

    @cached_property
    def colour(self) -> np.ndarray:
        return pictures.to_uint8(self.view.colour)

    @cached_property
    def depth(self) -> np.ndarray:
        return pictures.depth_picture(self.view.depth, self.view.opacity, self.depth_limits)

    @cached_property
    def opacity(self) -> np.ndarray:
        return pictures.opacity_picture(self.view.opacity)


class Abandoned(Exception):
    """A view was not finished, because nobody wants it any more."""


def render_view(
    renderer: Renderer,
    camera: Camera,
    pose: np.ndarray,
    bounds: Bounds,
    *,
    background: tuple[float, float, float],
    time: float | None = None,
    device: torch.device | str = "cpu",
    piece: int | None = None,
    change: Callable[[Rays], Rays] | None = None,
    unwanted: Callable[[], bool] | None = None,
) -> View:
    """Render the view of a camera at a pose [3, 4] in the normalised world. `ConfigError` for more than 33 megapixels.

    background: colour in 0..1. device: of the rays for the renderer. A pixel that is not finite becomes 0. piece: rays
    that are rendered at a time; None chooses. change: applied to the rays, for instance to shorten them. unwanted:
    asked before each piece; if it is true, `Abandoned` is raised.
    """
    require_size(camera.width, camera.height)
    device = torch.device(device)
    piece = piece or (WATCHED_PIECE if unwanted is not None and device.type == "cpu" else _PIECE)
    backdrop = torch.tensor(background, dtype=torch.float32, device=device)
    shape, n = (camera.height, camera.width), camera.height * camera.width
    # On the CPU, where the pieces of a large picture are put together.
    colour, opacity, depth = (torch.empty(n, *tail) for tail in ((3,), (), ()))
    # Each thread has a current device, which is where Triton starts kernels; viewer and service draw on their own.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        for first in range(0, n, piece):
            if unwanted is not None and unwanted():
                raise Abandoned
            span = range(first, min(first + piece, n))
            rays = rays_for_camera(camera, pose, bounds, time=time, device=device, pixels=span)
            rays = rays if change is None else change(rays)
            rendered, at = renderer.render(rays, backdrop), slice(span.start, span.stop)
            for values, found in ((colour, rendered.colour), (opacity, rendered.opacity)):
                values[at] = found.detach().float().nan_to_num(nan=0.0).clamp(0.0, 1.0)
            depth[at] = rendered.depth.detach().float().nan_to_num(nan=0.0)
    return View(colour.view(*shape, 3).numpy(), opacity.view(shape).numpy(), depth.view(shape).numpy())


def render_path(
    renderer: Renderer,
    path: CameraPath,
    bounds: Bounds,
    *,
    background: tuple[float, float, float],
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Iterator[FramePictures]:
    """Yield the views of `path` in order. None is kept: the caller decides how many are in memory.

    The first view with something in it sets the depth scale, so that a video does not flicker. background: colour in
    0..1. device: of the rays for the renderer. progress: called with (done, total) after each view.
    """
    limits: tuple[float, float] | None = None
    for index, (camera, pose) in enumerate(zip(path.cameras, path.poses, strict=True)):
        time = None if path.times is None else float(path.times[index])
        view = render_view(renderer, camera, pose, bounds, background=background, time=time, device=device)
        if limits is None and bool((view.opacity > 0.5).any()):
            near, far = pictures.depth_range(view.depth, view.opacity)
            limits = (0.8 * near, 1.25 * far)
        yield FramePictures(view, limits)
        if progress is not None:
            progress(index + 1, len(path))

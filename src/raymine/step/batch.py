"""The rays of a training step and their target colours."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from raymine.contracts import Rays
from raymine.kernels.judge.op import Wanted
from raymine.pixels import Pixels, draw_backgrounds
from raymine.step.data import TrainData
from raymine.step.state import TrainState


class RayBatch(NamedTuple):
    """The rays [R] of a step, their targets, and the pixels [R] (on the CPU) that they go through.

    pixels: None if the batch was drawn on the device; a pixel sampler that learns from errors needs them.
    image: their images [R] on the device of the state, for the exposure; None if the batch was drawn there.
    rays: have a graph to the poses where these are refined.
    """

    pixels: Pixels | None
    rays: Rays
    wanted: Wanted
    image: Tensor | None = None


DrawBatch: TypeAlias = "Callable[[TrainState, TrainData], RayBatch]"
"""Draws the batch of the current step."""


def draw_batch(state: TrainState, data: TrainData) -> RayBatch:
    """Draw the batch of the current step. A ray's weight is its mask weight times its importance weight, if any."""
    pixels, importance = state.pixels.draw(state.rays, state.seed, state.step)
    rgba, weight = data.images.gather(*pixels)
    if importance is not None:
        weight = weight * importance
    rgba, weight = rgba.to(state.device), weight.to(state.device)
    if state.config.background == "random":
        background = draw_backgrounds(len(rgba), state.seed, state.step, state.device)
    else:
        background = torch.tensor(data.background or (0.0, 0.0, 0.0), device=state.device).expand(len(rgba), 3)
    target = torch.lerp(background, rgba[:, :3], rgba[:, 3:])
    image, y, x = (part.to(state.device) for part in pixels)
    rays = data.rig.rays_for_pixels(image, x, y)
    if state.poses is not None:
        rays = state.poses.refine(rays, image)
    return RayBatch(pixels, rays, Wanted(target, background, weight), image)


def next_ray_count(state: TrainState, rays: int, marched: int) -> int:
    """The ray count with which this step would have placed the wanted number of samples; at most twice the last."""
    batch = state.config.batch
    wanted = rays * batch.samples // max(1, marched)
    return max(batch.min_rays, min(batch.max_rays, 2 * rays, wanted))

"""The rays of a training step and their target colours."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from raymine.contracts import NO_TARGETS, Rays, Targets, targets_of
from raymine.kernels.judge.op import Wanted
from raymine.pixels import Pixels, draw_backgrounds
from raymine.step.data import TrainData
from raymine.step.state import TrainState


class RayBatch(NamedTuple):
    """The rays [R] of a step, their targets, and the pixels [R] (on the CPU) that they go through.

    pixels: None if the batch was drawn on the device; a pixel sampler that learns from errors needs them.
    image: their images [R] on the device of the state, for the exposure; None if the batch was drawn there.
    rays: have a graph to the poses where these are refined.
    targets: what some loss terms compare with; empty if the batch was drawn on the device.
    """

    pixels: Pixels | None
    rays: Rays
    wanted: Wanted
    image: Tensor | None = None
    targets: Targets = NO_TARGETS


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
    asked = targets_of(state.config.loss)
    alpha = rgba[:, 3] if "alpha" in asked else None
    depth = _distances(data, pixels, image, rays) if "depth" in asked else None
    return RayBatch(pixels, rays, Wanted(target, background, weight), image, Targets(alpha, depth))


def _distances(data: TrainData, pixels: Pixels, image: Tensor, rays: Rays) -> Tensor | None:
    """Distances [R] along the rays to what the depth maps show; 0 where they show nothing. None without depth maps."""
    if data.depths is None:
        return None
    along = (rays.directions.detach() * data.rig.view_axes(image)).sum(1)
    return data.depths.gather(*pixels).to(along.device) / along.clamp_min(1e-3)


def next_ray_count(state: TrainState, rays: int, marched: int) -> int:
    """The ray count with which this step would have placed the wanted number of samples; at most twice the last."""
    batch = state.config.batch
    wanted = rays * batch.samples // max(1, marched)
    return max(batch.min_rays, min(batch.max_rays, 2 * rays, wanted))

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
from raymine.step.distributed.ranks import Slice
from raymine.step.state import TrainState


class RayBatch(NamedTuple):
    """The rays [R] of a step, their targets, and the pixels [R] (on the CPU) that they go through.

    pixels: None if the batch was drawn on the device; a pixel sampler that learns from errors needs them.
        One that learns gets those of all rays of the step, also where this process has a part of them.
    image: their images [R] on the device of the state, for the exposure.
    rays: have a graph to the poses where these are refined.
    targets: what some loss terms compare with; empty if the batch was drawn on the device.
    part: which rays of the step these are; None if they are all.
    """

    pixels: Pixels | None
    rays: Rays
    wanted: Wanted
    image: Tensor | None = None
    targets: Targets = NO_TARGETS
    part: Slice | None = None

    @property
    def all_rays(self) -> int:
        """The number of rays of the step, those of other ranks included."""
        return len(self.rays) if self.part is None else self.part.total


DrawBatch: TypeAlias = "Callable[[TrainState, TrainData], RayBatch]"
"""Draws the batch of the current step."""


def draw_batch(state: TrainState, data: TrainData) -> RayBatch:
    """Draw the batch of the current step. A ray's weight is its mask weight times its importance weight, if any.

    With several ranks, each gets its part of the rays.
    """
    part = part_of_rays(state)
    drawn, importance = state.pixels.draw(state.rays, state.seed, state.step, part and part[:2])
    pixels = drawn
    if part is not None and len(drawn.image) != len(part):
        pixels = drawn.part(part.start, part.stop)
        importance = None if importance is None else importance[part.start : part.stop]
    rgba, weight = data.images.gather(*pixels)
    if importance is not None:
        weight = weight * importance
    rgba, weight = rgba.to(state.device), weight.to(state.device)
    if state.config.background == "random":
        background = draw_backgrounds(
            len(rgba), state.seed, state.step, state.device, 0 if part is None else part.start
        )
    else:
        background = torch.tensor(data.background or (0.0, 0.0, 0.0), device=state.device).expand(len(rgba), 3)
    target = torch.lerp(background, rgba[:, :3], rgba[:, 3:])
    image, y, x = (part.to(state.device) for part in pixels)
    rig = data.rig if state.poses is None else state.poses.placed(data.rig)
    rays = given = rig.rays_for_pixels(image, x, y)
    if state.poses is not None and state.refining:
        rays = state.poses.refine(given, image)
    asked = targets_of(state.config.loss)
    alpha = rgba[:, 3] if "alpha" in asked else None
    depth = _distances(data, pixels, given, rig.view_axes(image)) if "depth" in asked else None
    return RayBatch(drawn, rays, Wanted(target, background, weight), image, Targets(alpha, depth), part)


def part_of_rays(state: TrainState) -> Slice | None:
    """The rays of the current step that this rank takes; None if it is the only one."""
    return state.ranks.slice_of(state.rays) if state.ranks.active else None


def _distances(data: TrainData, pixels: Pixels, rays: Rays, axes: Tensor) -> Tensor | None:
    """Distances [R] along the rays to what the depth maps show; 0 where they show nothing. None without depth maps.

    rays, axes [R, 3]: of the same poses. The angle between a ray and its view axis is that of the lens: a refined pose
    turns both alike.
    """
    if data.depths is None:
        return None
    along = (rays.directions * axes).sum(1)
    return data.depths.gather(*pixels).to(along.device) / along.clamp_min(1e-3)


def next_ray_count(state: TrainState, rays: int, marched: int) -> int:
    """The ray count with which this step would have placed the wanted number of samples; at most twice the last."""
    batch = state.config.batch
    wanted = rays * batch.samples // max(1, marched)
    # Every rank has a ray to train on.
    return max(batch.min_rays, state.ranks.world, min(batch.max_rays, 2 * rays, wanted))

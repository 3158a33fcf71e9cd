"""One training step, in the order of the flow: pixels, rays, samples, field, render, loss, update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from raymine.contracts import (
    Field,
    FieldInput,
    FieldOutput,
    LossReport,
    PullsBack,
    Rays,
    Samples,
    Selection,
    StepReport,
)
from raymine.kernels.judge.op import Wanted, judge
from raymine.kernels.philox.op import Stream, uniform
from raymine.losses import colour_loss
from raymine.pixels import Pixels, draw_backgrounds
from raymine.render import activate_density, composite_output, first_look, packed, query_points, take, visible_samples
from raymine.step.data import TrainData
from raymine.step.precision import visiting, ways_to_ask
from raymine.step.state import TrainState


class Batch(NamedTuple):
    """The rays of a step, what they should show, and the pixels [R] (on the CPU) that they go through; None where no
    one is to know, which a sampler that learns must."""

    pixels: Pixels | None
    rays: Rays
    wanted: Wanted


Draw = Callable[[TrainState, TrainData], Batch]
"""Draws the batch of the present step."""


def train_step(state: TrainState, data: TrainData, draw: Draw | None = None) -> StepReport:
    """Advance by one step. A step whose loss or gradient is not finite changes no parameter and says so.

    draw: `draw_batch`, or what draws the same in another way.
    """
    config, step = state.config, state.step
    if state.sampler.due(step):
        update_occupancy(state)
    batch = (draw or draw_batch)(state, data)
    rays = batch.rays
    jitter = uniform(state.seed, step, Stream.JITTER, (len(rays),), state.device)
    samples = state.sampler.sample(rays, jitter)
    marched = len(samples)
    loss, trained, extra = backward(state, rays, samples, batch.wanted)
    if state.pixels.learns:
        assert batch.pixels is not None
        state.pixels.observe(batch.pixels, torch.where(batch.wanted.weight > 0, loss.error, 0.0))

    gate = state.optimiser.gate(loss.total)
    rate = config.optimiser.rate_at(step, state.horizon)
    state.optimiser.step(rate, gate)
    state.step += 1
    if state.average is not None:
        state.average.follow(state.field, state.step)
    state.rays = next_ray_count(state, len(rays), marched)
    # All that is read from the device, at once.
    told = torch.stack([part.detach().double() for part in (gate, loss.total, loss.mse, *extra.values())])
    finite, total, mse, *rest = told.tolist()
    state.optimiser.updates += int(finite)
    numbers = dict(zip(extra, rest, strict=True))
    return StepReport(step, total, mse, len(rays), marched, trained, rate, finite > 0, numbers)


def backward(
    state: TrainState, rays: Rays, samples: Samples, wanted: Wanted
) -> tuple[LossReport, int, dict[str, Tensor]]:
    """Loss of the rays and its gradient in the parameters, through the samples that the policy trains on; how many they
    are, and the numbers [] of a miner."""
    mining = state.config.mining
    look, learn, scale = ways_to_ask(state.config, state.field)

    def objective(output: FieldOutput, samples: Samples) -> LossReport:
        rendered = composite_output(output, samples, wanted.background, mining.stop)
        return colour_loss(state.config.loss, rendered.colour, wanted.colour, wanted.weight)

    if state.miner is None:
        if mining.policy == "prune":
            samples, query = visible_samples(look, rays, samples, mining.stop, mining.faint)
        else:
            query = query_points(rays, samples)
        loss = objective(learn.forward(query), samples)
        (loss.total if scale == 1 else loss.total * scale).backward()
        unscale(state, scale)
        return loss, len(samples), {}
    first, kept = first_look(look, rays, samples, mining.stop, mining.faint, keep=True)
    found = judge(first.colour, first.density, packed(samples), wanted, state.config.loss.threshold, mining.stop)
    chosen = state.miner.choose_by_size(found.size, seed=state.seed, step=state.step)
    if len(chosen.index):
        query = query_points(rays, take(samples, chosen.index))
        query = replace(query, features=None if kept is None else kept[chosen.index])
        train_chosen(learn, query, found.gradient, chosen, scale)
        unscale(state, scale)
    mse = (found.error * wanted.weight).sum() / wanted.weight.sum().clamp_min(1)
    loss = LossReport(found.loss.sum(), mse, found.error)
    return loss, len(chosen.index), {"tau": chosen.tau, "budget": chosen.budget}


def train_chosen(field: Field, query: FieldInput, gradient: Tensor, chosen: Selection, scale: float = 1.0) -> None:
    """Send the gradients [B, 4] of the chosen samples, weighted and scaled, back into the parameters."""
    weight = chosen.weight if scale == 1 else chosen.weight * scale
    part = gradient[chosen.index] * weight[:, None]
    colour, density = part[:, :3].contiguous(), part[:, 3].contiguous()
    if isinstance(field, PullsBack):
        field.pull_back(query, colour, density)
    else:
        output = field.forward(query)
        torch.autograd.backward((output.colour, output.density), (colour, density))


def unscale(state: TrainState, scale: float) -> None:
    """Take a loss scale out of the gradients, which are float32 by now."""
    if scale == 1:
        return
    for parameter in state.optimiser.parameters.values():
        if parameter.grad is not None:
            parameter.grad.mul_(1 / scale)


def draw_batch(state: TrainState, data: TrainData) -> Batch:
    """The batch of the present step. A weight is that of the mask times that of the draw, where it has one."""
    pixels, importance = state.pixels.draw(state.rays, state.seed, state.step)
    rgba, weight = data.images.gather(*pixels)
    if importance is not None:
        weight = weight * importance
    rgba, weight = rgba.to(state.device), weight.to(state.device)
    if state.config.random_background:
        background = draw_backgrounds(len(rgba), state.seed, state.step, state.device)
    else:
        background = torch.tensor(data.background or (0.0, 0.0, 0.0), device=state.device).expand(len(rgba), 3)
    target = torch.lerp(background, rgba[:, :3], rgba[:, 3:])
    image, y, x = (part.to(state.device) for part in pixels)
    return Batch(pixels, data.rig.rays_for_pixels(image, x, y), Wanted(target, background, weight))


@torch.no_grad()
def update_occupancy(state: TrainState) -> None:
    """Visit cells of the occupancy grid with the field as it is now."""
    field = visiting(state.config, state.field)
    state.sampler.update(lambda points: activate_density(field.density(points)), state.seed, state.step)


def next_ray_count(state: TrainState, rays: int, marched: int) -> int:
    """The ray count that would have marched the wanted number of samples; it at most doubles from step to step."""
    batch = state.config.batch
    wanted = rays * batch.samples // max(1, marched)
    return max(batch.min_rays, min(batch.max_rays, 2 * rays, wanted))

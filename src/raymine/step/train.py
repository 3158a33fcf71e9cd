"""One training step, in the order of the flow: pixels, rays, samples, field, render, loss, update."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.contracts import Rays, StepReport
from raymine.kernels.philox.op import Stream, uniform
from raymine.losses import colour_loss
from raymine.pixels import draw_backgrounds, draw_uniform
from raymine.render import activate_density, composite_output, query_points, visible_samples
from raymine.step.data import TrainData
from raymine.step.state import TrainState


def train_step(state: TrainState, data: TrainData) -> StepReport:
    """Advance by one step. A step whose loss or gradient is not finite changes no parameter and says so."""
    config, step = state.config, state.step
    if state.sampler.due(step):
        update_occupancy(state)
    rays, target, weight, background = draw_batch(state, data)
    jitter = uniform(state.seed, step, Stream.JITTER, (len(rays),), state.device)
    samples = state.sampler.sample(rays, jitter)
    marched = len(samples)
    trained, query = samples, query_points(rays, samples)
    if config.mining.policy == "prune":
        trained, query = visible_samples(state.field, query, samples, config.mining.stop, config.mining.faint)
    rendered = composite_output(state.field.forward(query), trained, background, config.mining.stop)
    loss = colour_loss(config.loss, rendered.colour, target, weight)
    loss.total.backward()

    finite = bool(torch.isfinite(loss.total)) and state.optimiser.finite()
    rate = config.optimiser.rate_at(step, state.horizon)
    if finite:
        state.optimiser.step(rate)
    else:
        state.optimiser.clear()
    state.step += 1
    state.rays = next_ray_count(state, len(rays), marched)
    return StepReport(step, float(loss.total.detach()), float(loss.mse), len(rays), marched, len(trained), rate, finite)


def draw_batch(state: TrainState, data: TrainData) -> tuple[Rays, Tensor, Tensor, Tensor]:
    """Rays, their target colours [R, 3] and mask weights [R], and the background [R, 3] both are seen over."""
    image, y, x = draw_uniform(data.sizes, state.rays, state.seed, state.step)
    rgba, weight = data.images.gather(image, y, x)
    rgba, weight = rgba.to(state.device), weight.to(state.device)
    if state.config.random_background:
        background = draw_backgrounds(len(rgba), state.seed, state.step, state.device)
    else:
        background = torch.tensor(data.background or (0.0, 0.0, 0.0), device=state.device).expand(len(rgba), 3)
    target = torch.lerp(background, rgba[:, :3], rgba[:, 3:])
    rays = data.rig.rays_for_pixels(image.to(state.device), x.to(state.device), y.to(state.device))
    return rays, target, weight, background


@torch.no_grad()
def update_occupancy(state: TrainState) -> None:
    """Visit cells of the occupancy grid with the field as it is now."""
    state.sampler.update(lambda points: activate_density(state.field.density(points)), state.seed, state.step)


def next_ray_count(state: TrainState, rays: int, marched: int) -> int:
    """The ray count that would have marched the wanted number of samples; it at most doubles from step to step."""
    batch = state.config.batch
    wanted = rays * batch.samples // max(1, marched)
    return max(batch.min_rays, min(batch.max_rays, 2 * rays, wanted))

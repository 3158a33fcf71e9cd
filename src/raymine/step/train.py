"""One training step: pixels, rays, samples, field, rendering, loss, backward pass, update."""

from __future__ import annotations

from dataclasses import replace

import torch

from raymine.contracts import Draws, PreparesStep, StepReport
from raymine.step.batch import DrawBatch, draw_batch, next_ray_count, part_of_rays
from raymine.step.data import TrainData
from raymine.step.distributed.reduction import reduce_step
from raymine.step.mined import backward
from raymine.step.precision import field_for_occupancy, fields_for_step
from raymine.step.state import TrainState


def train_step(state: TrainState, data: TrainData, draw: DrawBatch | None = None) -> StepReport:
    """Advance the state by one step. If the loss or a gradient is not finite, no parameter changes.

    draw: draws the batch; None uses `draw_batch`. Another function must draw the same rays. Where several ranks train
    the state, all of them call this at the same time; the report is that of all their rays.
    """
    config, step = state.config, state.step
    state.end_refinement()
    part = part_of_rays(state)
    draws = Draws(state.seed, step, state.device, *((part.start, part.total) if part else ()))
    state.fade_levels()
    state.prepare_field(step)
    if isinstance(state.sampler, PreparesStep):
        state.sampler.before_step(field_for_occupancy(config, state.field), draws, data.times)
    batch = (draw or draw_batch)(state, data)
    fields = fields_for_step(config, state.field)
    rounds = state.sampler.sample(batch.rays.detached(), fields.inference, draws)
    loss, trained, extra = backward(state, batch, rounds, fields)
    if state.pixels.learns:
        assert batch.pixels is not None
        error = torch.where(batch.wanted.weight > 0, loss.error, 0.0)
        state.pixels.observe(batch.pixels, error if part is None else state.ranks.rows_of_rays(error, part))

    marched = len(rounds.samples)
    if state.ranks.active:
        reduced = reduce_step(state.ranks, state.optimiser, loss.total, loss.mse, marched, trained)
        loss, marched, trained = replace(loss, total=reduced.loss, mse=reduced.mse), reduced.marched, reduced.trained
    refined = state.poses if state.refining else None
    gate = state.optimiser.gate(loss.total)
    rate = config.optimiser.rate_at(step, state.horizon)
    own = {} if refined is None else {"poses.twist": refined.config.rate_at(step, state.horizon)}
    state.optimiser.step(rate, gate, own)
    if refined is not None:
        refined.clip()
        extra = {**extra, **refined.numbers()}
    state.step += 1
    if state.average is not None:
        state.average.follow(state.module, state.step)
    state.rays = next_ray_count(state, batch.all_rays, marched)
    # Everything that is read back from the device, in one transfer.
    told = torch.stack([gate.float(), *(part.detach().float() for part in (loss.total, loss.mse, *extra.values()))])
    state.ranks.await_device(state.device)
    finite, total, mse, *rest = told.tolist()
    state.optimiser.updates += int(finite)
    numbers = dict(zip(extra, rest, strict=True))
    return StepReport(step, total, mse, batch.all_rays, marched, trained, rate, finite > 0, numbers)

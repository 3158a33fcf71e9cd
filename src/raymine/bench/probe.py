"""Diagnostics of one training batch, without training on it: each sample's gradient, and which samples are chosen.

For every policy, G is the norm of the gradient with respect to the pre-activations of all marched samples. No faint
sample is left out, so that policies can be compared. The chosen samples are those that the policy itself would choose
from this batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raymine.contracts import NO_TARGETS, Draws, Rays, Rendered, Round, Samples, Selection, Targets
from raymine.kernels.judge.op import Wanted
from raymine.mining import Miner, draw
from raymine.mining.diagnose import Diagnosis, chosen_mask, diagnose, ray_importance, transmittance_before
from raymine.render import HIDDEN, first_pass
from raymine.step import TrainData, TrainState
from raymine.step.batch import draw_batch
from raymine.step.mined import OutputGradients, by_autograd
from raymine.step.objective import Objective

from .records import RayDetail


class MarchedBatch(NamedTuple):
    """Rays [R], their samples [B] and all that the loss compares them with, as a training step has it.

    earlier: the earlier rounds of the sampler. image [R]: of each ray, for exposures. targets: of terms that ask for
    more than colours.
    """

    rays: Rays
    samples: Samples
    wanted: Wanted
    earlier: tuple[Round, ...] = ()
    image: Tensor | None = None
    targets: Targets = NO_TARGETS


class Probe(NamedTuple):
    """The diagnostics of one batch, and the samples of one hard ray (None if no ray has samples)."""

    diagnosis: Diagnosis
    ray: RayDetail | None


def probe(state: TrainState, data: TrainData) -> Probe:
    """Diagnose the batch that the next step would draw. The state does not change."""
    batch = next_batch(state, data)
    found, rendered = batch_gradients(state, batch, faint=0.0)
    size = found.size
    selection = choice(state, data, batch, size)
    ray_id = batch.samples.ray_id
    light = transmittance_before(rendered.weights, ray_id, len(batch.rays))
    diagnosis = diagnose(size, rendered.weights, light, ray_id, found.loss.error, selection)
    return Probe(diagnosis, _hard_ray(batch.samples, rendered, size, chosen_mask(selection, len(size))))


def next_batch(state: TrainState, data: TrainData) -> MarchedBatch:
    """The rays that the next step would draw, with samples from the current occupancy grid."""
    drawn = draw_batch(state, data)
    rays = drawn.rays.detached()
    rounds = state.sampler.sample(rays, state.field, Draws(state.seed, state.step, state.device))
    return MarchedBatch(rays, rounds.samples, drawn.wanted, rounds.earlier, drawn.image, drawn.targets)


def batch_gradients(state: TrainState, batch: MarchedBatch, *, faint: float) -> tuple[OutputGradients, Rendered]:
    """Gradient of the loss with respect to each sample's pre-activations, and the rendered batch.

    Autograd goes through rendering and loss, not through the field. A sample whose own opacity is below `faint` has
    gradient 0.
    """
    first, _ = first_pass(state.field, batch.rays, batch.samples, state.config.mining.stop, faint)
    objective = Objective(state, batch.rays, batch.wanted, batch.earlier, batch.image, batch.targets)
    found = by_autograd(objective, first, batch.samples, alone=True)
    return found, objective.view(first, batch.samples).rendered


def choice(state: TrainState, data: TrainData, batch: MarchedBatch, size: Tensor) -> Selection:
    """The samples of the batch that the policy of `state` would train on; `size` is G [B]."""
    mining, count = state.config.mining, len(batch.samples)
    if state.miner is not None:
        # Use a copy of the miner, because choosing changes its running average.
        twin = Miner(state.miner.config, images=len(data.rig), device=state.device)
        twin.tau.copy_(state.miner.tau)
        own, _ = batch_gradients(state, batch, faint=mining.faint)
        return twin.choose_by_size(own.size, seed=state.seed, step=state.step)
    index = torch.arange(count, device=state.device)
    if mining.policy == "prune":
        seen, _ = first_pass(state.field, batch.rays, batch.samples, mining.stop, mining.faint)
        index = index[seen.density != HIDDEN]
    tau = draw.concentration(draw.probabilities(size), count)
    return Selection(index, torch.ones(len(index), device=state.device), tau, tau.new_tensor(float(count)))


def _hard_ray(samples: Samples, rendered: Rendered, size: Tensor, chosen: Tensor) -> RayDetail | None:
    """One ray as an example of mining: a hard ray with samples in front of a surface, on it and behind it.

    Of the opaque rays with at least 8 samples, it is the ray at the 95th percentile of the sum of G, because the
    hardest ray is often an outlier. If there is no such ray, it is chosen from all rays with samples.
    """
    clear = (samples.count >= 8) & (rendered.opacity > 0.9)
    fit = torch.nonzero(clear if bool(clear.any()) else samples.count > 0)[:, 0]
    if not len(fit):
        return None
    importance = ray_importance(size, samples.ray_id, samples.n_rays)[fit]
    ray = int(fit[importance.argsort()[int(0.95 * (len(fit) - 1))]])
    rows = slice(int(samples.first[ray]), int(samples.first[ray] + samples.count[ray]))
    middle = (samples.t_start[rows] + samples.t_end[rows]) / 2
    return RayDetail(
        tuple(middle.tolist()),
        tuple(rendered.weights[rows].tolist()),
        tuple(size[rows].tolist()),
        tuple(chosen[rows].tolist()),
    )

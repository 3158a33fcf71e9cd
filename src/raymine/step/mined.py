"""The backward pass of a step, for each mining policy.

`none` trains on all samples and `prune` on the visible ones, in one pass. `hard` takes two passes:

1. The first pass evaluates the field at all samples without a graph.
2. The gradient of the loss with respect to each sample's pre-activations is computed: in closed form where the loss
   allows it (`judge`), else by autograd. Autograd also reaches parameters that the loss itself depends on, such as the
   networks of earlier rounds or an exposure.
3. The miner chooses samples by the norm of that gradient.
4. The second pass evaluates the chosen samples with a graph and propagates their gradients to the parameters.

Loss terms over parameters alone involve no samples and are differentiated directly.

Where poses are refined, rays have a graph. It is used at the points at which the field is trained, and nowhere else.
"""

from __future__ import annotations

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
    Rounds,
    Samples,
    Selection,
)
from raymine.kernels.judge.op import judge
from raymine.kernels.threads import total
from raymine.mining import output_gradients
from raymine.mining.draw import norms
from raymine.render import first_pass, query_points, take, visible_samples
from raymine.step.batch import RayBatch
from raymine.step.objective import Objective, closed_form, parameter_loss, ray_share
from raymine.step.precision import StepFields
from raymine.step.state import TrainState


class BackwardResult(NamedTuple):
    """The result of a step's backward pass: the loss, the number of trained samples, the miner's numbers []."""

    loss: LossReport
    trained: int
    extra: dict[str, Tensor]


class OutputGradients(NamedTuple):
    """The gradient of the loss with respect to each sample's pre-activations, and the loss.

    gradient [B, 4]: colour, then density. size [B]: its norm, 0 where that is not finite.
    """

    gradient: Tensor
    size: Tensor
    loss: LossReport


def backward(state: TrainState, batch: RayBatch, rounds: Rounds, fields: StepFields) -> BackwardResult:
    """Compute the loss of a batch and add its gradient to `.grad` of the parameters, as the mining policy says.

    With several ranks, loss and gradients are the part of this one: those of the step are their sums.
    """
    share = ray_share(state, batch.all_rays, batch.wanted.weight)
    drawn = batch.wanted, rounds.earlier, batch.image, batch.targets
    objective = Objective(state, batch.rays.detached(), *drawn, share)
    if state.miner is None:
        found = _unmined(state, objective, batch.rays, rounds.samples, fields)
    else:
        found = _mined(state, objective, batch.rays, rounds.samples, fields)
    value = parameter_loss(state, state.step)
    if value is not None:
        if state.ranks.world > 1:
            # Every rank computes it, and gradients are summed.
            value = value / state.ranks.world
        (value if fields.loss_scale == 1 else value * fields.loss_scale).backward()
        found = found._replace(loss=replace(found.loss, total=found.loss.total + value.detach()))
    unscale(state, fields.loss_scale)
    return found


def _unmined(
    state: TrainState, objective: Objective, rays: Rays, samples: Samples, fields: StepFields
) -> BackwardResult:
    mining = state.config.mining
    if mining.policy == "prune":
        samples, query = visible_samples(fields.inference, objective.rays, samples, mining.stop, mining.faint)
        if state.refining:
            query = replace(query_points(rays, samples), features=query.features)
    else:
        query = query_points(rays, samples)
    loss = objective(fields.training.forward(query), samples)
    (loss.total if fields.loss_scale == 1 else loss.total * fields.loss_scale).backward()
    return BackwardResult(loss, len(samples), {})


def _mined(state: TrainState, objective: Objective, rays: Rays, samples: Samples, fields: StepFields) -> BackwardResult:
    mining = state.config.mining
    assert state.miner is not None
    first, kept = first_pass(fields.inference, objective.rays, samples, mining.stop, mining.faint, keep=True)
    found = objective_gradients(state, objective, first, samples, fields.loss_scale)
    chosen = _chosen(state, found.size)
    if len(chosen.index):
        query = query_points(rays, take(samples, chosen.index))
        query = replace(query, features=None if kept is None else kept[chosen.index])
        train_chosen(fields.training, query, found.gradient, chosen, fields.loss_scale)
    return BackwardResult(found.loss, len(chosen.index), {"tau": chosen.tau, "budget": chosen.budget})


def _chosen(state: TrainState, size: Tensor) -> Selection:
    """The samples of this rank that the miner chooses, by the gradient norms [B] of its samples.

    Every rank chooses among the samples of all ranks, with the same result, and keeps its own. So tau, the budget and
    the draws are those of one process.
    """
    assert state.miner is not None
    every, first = state.ranks.rows(size)
    chosen = state.miner.choose_by_size(every, seed=state.seed, step=state.step)
    if len(every) == len(size):
        return chosen
    own = (chosen.index >= first) & (chosen.index < first + len(size)) & (chosen.weight > 0)
    return Selection(chosen.index[own] - first, chosen.weight[own], chosen.tau, chosen.budget)


def objective_gradients(
    state: TrainState,
    objective: Objective,
    output: FieldOutput,
    samples: Samples,
    scale: float = 1.0,
    *,
    alone: bool = False,
) -> OutputGradients:
    """Gradient of the objective with respect to every pre-activation, in closed form if there is one, else by autograd.

    scale: the loss scale of gradients that autograd adds to parameters; the returned gradient is not scaled. alone:
    parameters get no gradients.
    """
    loss = closed_form(state)
    if loss is None:
        return by_autograd(objective, output, samples, scale, alone=alone)
    wanted, stop, fade = objective.wanted, state.config.mining.stop, state.config.near_fade
    found = judge(
        output.colour, output.density, samples, wanted, loss.colour.threshold, stop,
        distortion=loss.distortion, fade=fade, divisor=objective.share.weight_sum,
    )  # fmt: skip
    weight_sum = objective.share.weight_sum
    mse = total(found.error * wanted.weight) / (total(wanted.weight) if weight_sum is None else weight_sum).clamp_min(1)
    return OutputGradients(found.gradient, found.size, LossReport(total(found.loss), mse, found.error))


def by_autograd(
    objective: Objective, output: FieldOutput, samples: Samples, scale: float = 1.0, *, alone: bool = False
) -> OutputGradients:
    """The same by autograd, for any loss terms and activations. alone: parameters get no gradients."""

    def loss_of(colour: Tensor, density: Tensor) -> tuple[Tensor, LossReport]:
        report = objective(FieldOutput(colour, density), samples)
        return report.total, report

    (colour, density), report = output_gradients(loss_of, (output.colour, output.density), scale, alone=alone)
    gradient = torch.cat((colour, density[:, None]), 1)
    return OutputGradients(gradient, norms(gradient), replace(report, total=report.total.detach()))


def train_chosen(field: Field, query: FieldInput, gradient: Tensor, chosen: Selection, scale: float = 1.0) -> None:
    """Propagate the output gradients [B, 4] of the chosen samples, weighted and scaled, to the parameters.

    A query with a graph (refined poses) goes through autograd: `PullsBack` reaches the field's parameters alone.
    """
    weight = chosen.weight if scale == 1 else chosen.weight * scale
    part = gradient[chosen.index] * weight[:, None]
    colour, density = part[:, :3].contiguous(), part[:, 3].contiguous()
    if isinstance(field, PullsBack) and not query.has_graph:
        field.pull_back(query, colour, density)
    else:
        output = field.forward(query)
        torch.autograd.backward((output.colour, output.density), (colour, density))


def unscale(state: TrainState, scale: float) -> None:
    """Divide the parameter gradients, which are float32, by the loss scale."""
    if scale == 1:
        return
    for parameter in state.optimiser.parameters.values():
        if parameter.grad is not None:
            parameter.grad.mul_(1 / scale)

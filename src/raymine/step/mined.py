"""The gradient of a step: first pass over all samples, choice, second pass over the chosen ones.

`none` and `prune` need no choice: the first trains on all samples, the other on those that a ray still sees. For `hard`

1. the first pass evaluates the field without a graph;
2. the objective is differentiated in the pre-activations of every sample (and in what it holds itself: the networks of
   earlier rounds, an exposure), by autograd or, where the loss allows it, in closed form (`judge`);
3. the miner chooses samples by the size of that gradient;
4. the second pass evaluates the chosen samples with a graph and sends their gradients into the parameters.

Terms over parameters alone have no samples to choose from and are differentiated directly.
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
    ParameterView,
    PullsBack,
    Rounds,
    Samples,
    Selection,
)
from raymine.kernels.judge.op import judge
from raymine.mining import output_gradients
from raymine.mining.draw import norms
from raymine.render import first_pass, query_points, take, visible_samples
from raymine.step.batch import RayBatch
from raymine.step.objective import Objective, closed_form, parameter_terms, sum_of
from raymine.step.precision import StepFields
from raymine.step.state import TrainState


class BackwardResult(NamedTuple):
    """What the backward pass of a step found: the loss, how many samples were trained on, numbers [] of the miner."""

    loss: LossReport
    trained: int
    extra: dict[str, Tensor]


class OutputGradients(NamedTuple):
    """gradient [B, 4] of the loss in the pre-activations (colour, density), its norm [B], 0 where that is not finite,
    and the loss."""

    gradient: Tensor
    size: Tensor
    loss: LossReport


def backward(state: TrainState, batch: RayBatch, rounds: Rounds, fields: StepFields) -> BackwardResult:
    """The loss of a batch and its gradient in the parameters, through the samples that the policy trains on."""
    objective = Objective(state, batch.rays, batch.wanted, rounds.earlier)
    if state.miner is None:
        found = _unmined(state, objective, rounds.samples, fields)
    else:
        found = _mined(state, objective, rounds.samples, fields)
    terms = parameter_terms(state)
    if terms:
        value = sum_of(terms, ParameterView(state.optimiser.parameters, state.step))
        (value if fields.loss_scale == 1 else value * fields.loss_scale).backward()
        found = found._replace(loss=replace(found.loss, total=found.loss.total + value.detach()))
    unscale(state, fields.loss_scale)
    return found


def _unmined(state: TrainState, objective: Objective, samples: Samples, fields: StepFields) -> BackwardResult:
    mining = state.config.mining
    if mining.policy == "prune":
        samples, query = visible_samples(fields.inference, objective.rays, samples, mining.stop, mining.faint)
    else:
        query = query_points(objective.rays, samples)
    loss = objective(fields.training.forward(query), samples)
    (loss.total if fields.loss_scale == 1 else loss.total * fields.loss_scale).backward()
    return BackwardResult(loss, len(samples), {})


def _mined(state: TrainState, objective: Objective, samples: Samples, fields: StepFields) -> BackwardResult:
    mining = state.config.mining
    assert state.miner is not None
    first, kept = first_pass(fields.inference, objective.rays, samples, mining.stop, mining.faint, keep=True)
    found = objective_gradients(state, objective, first, samples, fields.loss_scale)
    chosen = state.miner.choose_by_size(found.size, seed=state.seed, step=state.step)
    if len(chosen.index):
        query = query_points(objective.rays, take(samples, chosen.index))
        query = replace(query, features=None if kept is None else kept[chosen.index])
        train_chosen(fields.training, query, found.gradient, chosen, fields.loss_scale)
    return BackwardResult(found.loss, len(chosen.index), {"tau": chosen.tau, "budget": chosen.budget})


def objective_gradients(
    state: TrainState, objective: Objective, output: FieldOutput, samples: Samples, scale: float = 1.0
) -> OutputGradients:
    """Gradient of the objective in every pre-activation: in closed form where there is one, by autograd elsewhere."""
    colour = closed_form(state)
    if colour is None:
        return by_autograd(objective, output, samples, scale)
    wanted, stop = objective.wanted, state.config.mining.stop
    found = judge(output.colour, output.density, samples, wanted, colour.threshold, stop)
    mse = (found.error * wanted.weight).sum() / wanted.weight.sum().clamp_min(1)
    return OutputGradients(found.gradient, found.size, LossReport(found.loss.sum(), mse, found.error))


def by_autograd(objective: Objective, output: FieldOutput, samples: Samples, scale: float = 1.0) -> OutputGradients:
    """The general form, for any loss terms and activations."""

    def loss_of(colour: Tensor, density: Tensor) -> tuple[Tensor, LossReport]:
        report = objective(FieldOutput(colour, density), samples)
        return report.total, report

    (colour, density), report = output_gradients(loss_of, (output.colour, output.density), scale)
    gradient = torch.cat((colour, density[:, None]), 1)
    return OutputGradients(gradient, norms(gradient), replace(report, total=report.total.detach()))


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

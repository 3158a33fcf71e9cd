"""The objective of a step: the sum of the loss terms over the rays of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from raymine.contracts import (
    NO_TARGETS,
    FieldOutput,
    LossReport,
    LossView,
    ParameterView,
    Rays,
    Round,
    Samples,
    Targets,
    Term,
    activations_of,
)
from raymine.kernels.activations import NGP
from raymine.kernels.judge.op import Wanted, fade_factor
from raymine.losses import JudgedLoss, judged_loss, squared_errors
from raymine.render import composite_output
from raymine.step.state import TrainState


@dataclass(frozen=True)
class Objective:
    """The loss of one batch as a function of the field's outputs. `rounds`: the earlier rounds of the sampler.

    image [R]: of each ray, for the exposure, if the state has one. targets: of the rays, for terms that ask for them.
    """

    state: TrainState
    rays: Rays
    wanted: Wanted
    rounds: tuple[Round, ...] = ()
    image: Tensor | None = None
    targets: Targets = NO_TARGETS

    def __call__(self, output: FieldOutput, samples: Samples) -> LossReport:
        """Render the pre-activations [B] and sum all terms but those over parameters. Differentiable in `output`."""
        view = self.view(output, samples)
        total = sum_of([term for term in self.state.config.loss if term.reads != "parameters"], view)
        colour = view.rendered.colour
        return LossReport(total, *squared_errors(colour, self.wanted.colour, self.wanted.weight))

    def view(self, output: FieldOutput, samples: Samples) -> LossView:
        state = self.state
        stop, activations = state.config.mining.stop, activations_of(state.field)
        if state.config.near_fade > 0:
            output = _faded(output, samples, state.config.near_fade)
        rendered = composite_output(output, samples, self.wanted.background, stop, activations)
        if state.exposure is not None:
            assert self.image is not None, "engines that draw rays on the device refuse an exposure"
            shown = rendered.colour, rendered.opacity, self.wanted.background
            rendered = replace(rendered, colour=state.exposure.expose(*shown, self.image))
        parameters = state.optimiser.parameters
        seen = self.rays, self.wanted, samples, output, rendered, self.rounds, self.targets
        return LossView(parameters, state.step, *seen, field=state.field)


def closed_form(state: TrainState) -> JudgedLoss | None:
    """The loss as arguments of `judge`, if that has the gradient of all its terms in closed form; else None."""
    closed = state.exposure is None and activations_of(state.field) == NGP
    return judged_loss(state.config.loss) if closed else None


def parameter_terms(state: TrainState) -> list[Term]:
    """The loss terms that read parameters alone."""
    return [term for term in state.config.loss if term.reads == "parameters"]


def parameter_loss(state: TrainState, step: int | Tensor) -> Tensor | None:
    """The sum [] of the terms that read parameters alone, with a graph; None if there are none."""
    terms = parameter_terms(state)
    return sum_of(terms, ParameterView(state.optimiser.parameters, step, field=state.field)) if terms else None


def sum_of(terms: list[Term], view: ParameterView) -> Tensor:
    """The sum [] of the terms. `view` must be a `LossView` for terms that read more than parameters."""
    values = [term(cast("LossView", view)) for term in terms]
    return values[0] if len(values) == 1 else torch.stack(values).sum()


def _faded(output: FieldOutput, samples: Samples, fade: float) -> FieldOutput:
    """The same outputs [B]; their gradients are multiplied by `judge.fade_factor`, which is below 1 near cameras."""
    factor = fade_factor((samples.t_start + samples.t_end) * 0.5, fade)
    colour = output.colour.detach() + factor[:, None] * (output.colour - output.colour.detach())
    return FieldOutput(colour, output.density.detach() + factor * (output.density - output.density.detach()))

"""The objective of a step: the sum of the loss terms over the rays of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from raymine.contracts import (
    FieldOutput,
    LossReport,
    LossView,
    ParameterView,
    Rays,
    Round,
    Samples,
    Term,
    activations_of,
)
from raymine.kernels.activations import NGP
from raymine.kernels.judge.op import Wanted
from raymine.losses import ColourLoss, squared_errors
from raymine.render import composite_output
from raymine.step.state import TrainState


@dataclass(frozen=True)
class Objective:
    """The loss of one batch as a function of the field's outputs. `rounds`: the earlier rounds of the sampler.

    image [R]: of each ray, for the exposure, if the state has one.
    """

    state: TrainState
    rays: Rays
    wanted: Wanted
    rounds: tuple[Round, ...] = ()
    image: Tensor | None = None

    def __call__(self, output: FieldOutput, samples: Samples) -> LossReport:
        """Render the pre-activations [B] and sum all terms but those over parameters. Differentiable in `output`."""
        view = self.view(output, samples)
        total = sum_of([term for term in self.state.config.loss if term.reads != "parameters"], view)
        colour = view.rendered.colour
        return LossReport(total, *squared_errors(colour, self.wanted.colour, self.wanted.weight))

    def view(self, output: FieldOutput, samples: Samples) -> LossView:
        state = self.state
        stop, activations = state.config.mining.stop, activations_of(state.field)
        rendered = composite_output(output, samples, self.wanted.background, stop, activations)
        if state.exposure is not None:
            assert self.image is not None, "engines that draw rays on the device refuse an exposure"
            seen = rendered.colour, rendered.opacity, self.wanted.background
            rendered = replace(rendered, colour=state.exposure.expose(*seen, self.image))
        parameters = state.optimiser.parameters
        return LossView(parameters, state.step, self.rays, self.wanted, samples, output, rendered, self.rounds)


def closed_form(state: TrainState) -> ColourLoss | None:
    """The colour loss, if it is the only term and `judge` has its gradient in closed form; else None."""
    loss = state.config.loss
    if state.exposure is not None:
        return None
    if len(loss) == 1 and isinstance(loss[0], ColourLoss) and activations_of(state.field) == NGP:
        return loss[0]
    return None


def parameter_terms(state: TrainState) -> list[Term]:
    """The loss terms that read parameters alone."""
    return [term for term in state.config.loss if term.reads == "parameters"]


def sum_of(terms: list[Term], view: ParameterView) -> Tensor:
    """The sum [] of the terms. `view` must be a `LossView` for terms that read more than parameters."""
    values = [term(cast("LossView", view)) for term in terms]
    return values[0] if len(values) == 1 else torch.stack(values).sum()

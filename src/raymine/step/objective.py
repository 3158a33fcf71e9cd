"""The objective of a step: the sum of the loss terms over the rays of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from raymine.contracts import (
    ALL_RAYS,
    NO_TARGETS,
    FieldOutput,
    LossReport,
    LossView,
    ParameterView,
    Rays,
    RayShare,
    Round,
    Samples,
    Targets,
    Term,
    activations_of,
    targets_of,
)
from raymine.kernels.activations import NGP
from raymine.kernels.judge.op import Wanted, fade_factor
from raymine.kernels.threads import total
from raymine.losses import JudgedLoss, judged_loss, squared_errors
from raymine.render import composite_output
from raymine.step.state import TrainState


@dataclass(frozen=True)
class Objective:
    """The loss of one batch as a function of the field's outputs. `rounds`: the earlier rounds of the sampler.

    image [R]: of each ray, for the exposure, if the state has one. targets: of the rays, for terms that ask for them.
    without: fields of `Targets`; terms that ask for one of them are left out. exposed: False for images that were not
    trained on, which have the mean exposure.
    share: these rays among those of all ranks. The loss is then the part of this rank in the loss of the step.
    """

    state: TrainState
    rays: Rays
    wanted: Wanted
    rounds: tuple[Round, ...] = ()
    image: Tensor | None = None
    targets: Targets = NO_TARGETS
    share: RayShare = ALL_RAYS
    without: frozenset[str] = frozenset()
    exposed: bool = True

    def __call__(self, output: FieldOutput, samples: Samples) -> LossReport:
        """Render the pre-activations [B] and sum all terms but those over parameters. Differentiable in `output`."""
        view = self.view(output, samples)
        terms = [term for term in self.state.config.loss if term.reads != "parameters"]
        terms = [term for term in terms if not targets_of((term,)) & self.without]
        value = sum_of(terms, view, len(self.rays) / view.all_rays if self.share.all_rays else 1.0)
        colour = view.rendered.colour
        return LossReport(value, *squared_errors(colour, self.wanted.colour, self.wanted.weight, view.weight_sum))

    def view(self, output: FieldOutput, samples: Samples) -> LossView:
        state = self.state
        stop, activations = state.config.mining.stop, activations_of(state.field)
        if state.config.near_fade > 0:
            output = _faded(output, samples, state.config.near_fade)
        rendered = composite_output(output, samples, self.wanted.background, stop, activations)
        if state.exposure is not None and self.exposed:
            assert self.image is not None, "the batch does not say which images its rays are of"
            shown = rendered.colour, rendered.opacity, self.wanted.background
            rendered = replace(rendered, colour=state.exposure.expose(*shown, self.image))
        parameters = state.optimiser.parameters
        seen = self.rays, self.wanted, samples, output, rendered, self.rounds, self.targets
        return LossView(parameters, state.step, *seen, self.share, field=state.field)


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
    return sum_of(terms, _all_parameters(state, step)) if terms else None


def _all_parameters(state: TrainState, step: int | Tensor) -> ParameterView:
    return ParameterView(state.optimiser.parameters, step, field=state.field, cameras=state.cameras)


def ray_share(state: TrainState, all_rays: int, weight: Tensor) -> RayShare:
    """The rays with these weights [R] among the rays of all ranks."""
    ranks = state.ranks
    return RayShare(all_rays, ranks.sum(total(weight)), ranks.sum) if ranks.active else ALL_RAYS


def sum_of(terms: list[Term], view: ParameterView, share: float = 1.0) -> Tensor:
    """The sum [] of the terms. `view` must be a `LossView` for terms that read more than parameters.

    share: factor on terms that do not divide by sums over all ranks themselves (`contracts.Term`).
    """
    values = [term(cast("LossView", view)) for term in terms]
    if share != 1:
        own = (getattr(term, "shared", False) for term in terms)
        values = [value if shared else value * share for value, shared in zip(values, own, strict=True)]
    return values[0] if len(values) == 1 else torch.stack(values).sum()


def _faded(output: FieldOutput, samples: Samples, fade: float) -> FieldOutput:
    """The same outputs [B]; their gradients are multiplied by `judge.fade_factor`, which is below 1 near cameras."""
    factor = fade_factor((samples.t_start + samples.t_end) * 0.5, fade)
    colour = output.colour.detach() + factor[:, None] * (output.colour - output.colour.detach())
    return FieldOutput(colour, output.density.detach() + factor * (output.density - output.density.detach()))

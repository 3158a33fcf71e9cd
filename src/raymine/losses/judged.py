"""The losses whose gradient the op `judge` has in closed form: the colour loss, alone or with the distortion loss.

Terms over parameters alone do not count: they are differentiated on their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raymine.contracts import Term
from raymine.losses.colour import ColourLoss
from raymine.losses.distortion import DistortionLoss


class JudgedLoss(NamedTuple):
    """The loss as arguments of `judge`: the colour loss, and the factor of the distortion (0: none)."""

    colour: ColourLoss
    distortion: float


def judged_loss(loss: Sequence[Term]) -> JudgedLoss | None:
    """The terms as a `JudgedLoss`, or None if `judge` does not have their gradient. Without terms over parameters."""
    colours = [term for term in loss if isinstance(term, ColourLoss)]
    spreads = [term for term in loss if isinstance(term, DistortionLoss)]
    judged = [term for term in loss if term.reads != "parameters"]
    if len(colours) != 1 or len(colours) + len(spreads) != len(judged):
        return None
    return JudgedLoss(colours[0], sum(term.weight for term in spreads))

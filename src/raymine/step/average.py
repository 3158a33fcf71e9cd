"""The field that is shown: an average of the one that is trained over its latest steps.

While the learning rate is high, parameters wander around what they have learnt, the more so the fewer samples a step
trains on. Their average does not, so that training can keep a high rate to its end and still be looked at at any time.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from raymine.fields import HashField

EVERY = 16
"""Steps between two updates: averaging every step would move as many bytes as training does."""


class Average:
    """An exponential average over about the last `share` of all steps so far."""

    def __init__(self, field: HashField, share: float) -> None:
        self.share = share
        self.field = copy.deepcopy(field).requires_grad_(False)

    def tensors(self) -> dict[str, Tensor]:
        """What to save, by the names of the field's parameters."""
        return dict(self.field.named_parameters())

    @torch.no_grad()
    def follow(self, field: HashField, step: int) -> None:
        """Take up the field as it is after `step` steps."""
        if step % EVERY:
            return
        rate = min(1.0, EVERY / max(1.0, self.share * step))
        for own, new in zip(self.field.parameters(), field.parameters(), strict=True):
            own.lerp_(new, rate)

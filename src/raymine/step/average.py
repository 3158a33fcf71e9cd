"""The field that is evaluated and rendered: a moving average of the trained field over its latest steps.

While the learning rate is high, the parameters fluctuate, and the more so the fewer samples a step trains on. Their
average fluctuates less. So training can keep a high learning rate to the end and can be evaluated at any time.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn

from raymine.contracts import Field, Scalars
from raymine.step.parts import ModulePart

STEPS_PER_UPDATE = 16
"""Steps between two updates: averaging after every step would move as many bytes as training does."""


class Average:
    """An exponential moving average over about the last `share` of all steps so far. Buffers are copied."""

    def __init__(self, field: nn.Module, share: float) -> None:
        self.share = share
        self._module = copy.deepcopy(field).requires_grad_(False)
        # Only persistent buffers change; the others are constants.
        self._buffers = [name for name, _ in field.named_buffers() if name in field.state_dict()]

    @property
    def field(self) -> Field:
        return cast("Field", self._module)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to save, by the names of the field's parameters and buffers."""
        return ModulePart(self._module).tensors()

    @torch.no_grad()
    def follow(self, field: nn.Module, step: int) -> None:
        """Add the field as it is after `step` steps to the average."""
        if step % STEPS_PER_UPDATE:
            return
        rate = min(1.0, STEPS_PER_UPDATE / max(1.0, self.share * step))
        for own, new in zip(self._module.parameters(), field.parameters(), strict=True):
            own.lerp_(new, rate)
        for name in self._buffers:
            self._module.get_buffer(name).copy_(field.get_buffer(name))

    @torch.no_grad()
    def restart(self, field: nn.Module) -> None:
        """Begin anew with the field as it is, because its rows moved (`contracts.PreparesField`)."""
        for own, new in zip(self._module.parameters(), field.parameters(), strict=True):
            own.copy_(new)
        for name in self._buffers:
            self._module.get_buffer(name).copy_(field.get_buffer(name))
        self.restored(ModulePart(field).scalars())

    def restored(self, scalars: Scalars) -> None:
        """Recompute what depends on the tensors; scalars: the numbers of the trained field."""
        ModulePart(self._module).restored(scalars)

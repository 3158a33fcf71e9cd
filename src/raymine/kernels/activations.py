"""Activations: functions that map the pre-activations of a field to density and colour. They are plain values.

    exp        exp(min(x - shift, cap)); its derivative is exp(min(x - shift, cap)) as well, also above the cap
    softplus   log(1 + exp(x - shift))
    relu       max(x - shift, 0)
    sigmoid    1 / (1 + exp(shift - x))

The derivative above the cap is not 0, so that a density that has grown too large can decrease again. The Numba and
Triton kernels implement `NGP` only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels.threads import sigmoid

Kind = Literal["exp", "softplus", "relu", "sigmoid"]

CAP = 15.0
"""Largest exponent of the density of a hash-grid field. exp(15) per world unit is opaque at any usual step length."""

HIDDEN = -1e4
"""Density pre-activation of an invisible sample. Every activation maps it to exactly 0, in every float type."""

MOST_SHIFT = 1e3
"""Largest absolute shift. It keeps HIDDEN - shift so negative that every activation still gives exactly 0."""


@dataclass(frozen=True)
class Activation:
    """An elementwise function of pre-activations, defined in the module docstring.

    shift: subtracted from the pre-activation first. cap: the largest exponent, for `exp` only; None means no limit.
    """

    kind: Kind
    shift: float = 0.0
    cap: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigError(f"an activation must be one of {', '.join(get_args(Kind))}; got {self.kind!r}.")
        if not abs(self.shift) <= MOST_SHIFT:
            raise ConfigError(f"the `shift` of an activation must be in -1000 .. 1000, got {self.shift}.")
        if self.cap is not None and self.kind != "exp":
            raise ConfigError(f"only the activation `exp` takes a `cap`; got {self.cap} for `{self.kind}`.")
        if self.cap is not None and not math.isfinite(self.cap):
            raise ConfigError(f"the `cap` of an activation must be finite, got {self.cap}. None is no limit.")

    def __call__(self, raw: Tensor) -> Tensor:
        """Pre-activations of any shape and float type -> values of the same shape and type. Differentiable."""
        if not raw.is_floating_point():
            raise ConfigError(f"pre-activations `raw` must be floating point, got {raw.dtype}.")
        if self.cap is not None:
            return _CappedExp.apply(raw, self.shift, self.cap)
        shifted = raw - self.shift if self.shift else raw
        if self.kind == "exp":
            return torch.exp(shifted)
        if self.kind == "softplus":
            return torch.nn.functional.softplus(shifted)
        return torch.relu(shifted) if self.kind == "relu" else sigmoid(shifted)


@dataclass(frozen=True)
class Activations:
    """The activations of a field: of density, in 1 / world units, and of colour, in 0..1."""

    density: Activation
    colour: Activation


NGP = Activations(density=Activation("exp", shift=1.0, cap=CAP), colour=Activation("sigmoid"))
"""The activations of the hash-grid field: density exp(min(x - 1, CAP)), colour sigmoid(x)."""


class _CappedExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, shift: float, cap: float) -> Tensor:
        value = torch.exp((raw - shift).clamp_max(cap))
        ctx.save_for_backward(value)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (value,) = ctx.saved_tensors
        return grads[0] * value, None, None

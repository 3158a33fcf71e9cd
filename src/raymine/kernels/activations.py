"""Activations as values: how pre-activations of a field become density and colour.

    exp        exp(min(x - shift, cap)), with the slope of the exponential at the capped value
    softplus   log(1 + exp(x - shift))
    relu       max(x - shift, 0)
    sigmoid    1 / (1 + exp(shift - x))

Beyond the cap the derivative is the value itself instead of 0, so that a density that has become too large can come
down again. The Numba and Triton kernels have `NGP` built in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from raymine.errors import ConfigError

Kind = Literal["exp", "softplus", "relu", "sigmoid"]

CAP = 15.0
"""Largest exponent of the density of a hash-grid field: exp(15) per world unit is opaque at any usual step length."""

HIDDEN = -1e4
"""Density pre-activation of a sample that no ray sees: exactly 0 after every activation, in every float type."""

MOST_SHIFT = 1e3
"""A shift stays far from HIDDEN, which would not give 0 otherwise."""


@dataclass(frozen=True)
class Activation:
    """A function of pre-activations, elementwise (definitions in the module's docstring).

    shift: what is subtracted first. cap: the largest exponent, for `exp` only; None: no limit.
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
        """Values of pre-activations of any shape and float type. Differentiable."""
        if self.cap is not None:
            return _CappedExp.apply(raw, self.shift, self.cap)
        shifted = raw - self.shift if self.shift else raw
        if self.kind == "exp":
            return torch.exp(shifted)
        if self.kind == "softplus":
            return torch.nn.functional.softplus(shifted)
        return torch.relu(shifted) if self.kind == "relu" else torch.sigmoid(shifted)


@dataclass(frozen=True)
class Activations:
    """How a field's outputs are read: density per world unit, colour in 0..1."""

    density: Activation
    colour: Activation


NGP = Activations(density=Activation("exp", shift=1.0, cap=CAP), colour=Activation("sigmoid"))
"""Those of the hash-grid field."""


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

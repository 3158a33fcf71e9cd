"""placeholder, replaced at merge by the full module"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from raymine.errors import ConfigError

CAP = 15.0
HIDDEN = -1e4


@dataclass(frozen=True)
class Activation:
    kind: Literal["exp", "softplus", "relu", "sigmoid"]
    shift: float = 0.0
    cap: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("exp", "softplus", "relu", "sigmoid"):
            raise ConfigError(f"activation `kind` must be exp, softplus, relu or sigmoid, got {self.kind!r}.")

    def __call__(self, raw: Tensor) -> Tensor:
        if self.kind == "exp":
            return _CappedExp.apply(raw, self.shift, self.cap)
        raw = raw - self.shift if self.shift else raw
        return {"softplus": torch.nn.functional.softplus, "relu": torch.relu, "sigmoid": torch.sigmoid}[self.kind](raw)


class _CappedExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, shift: float, cap: float | None) -> Tensor:
        raw = raw - shift
        density = torch.exp(raw if cap is None else raw.clamp_max(cap))
        ctx.save_for_backward(density)
        return density

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (density,) = ctx.saved_tensors
        return grads[0] * density, None, None


@dataclass(frozen=True)
class Activations:
    density: Activation
    colour: Activation


NGP = Activations(Activation("exp", 1.0, CAP), Activation("sigmoid"))

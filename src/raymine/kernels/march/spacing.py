"""The spacing of steps along a ray, in closed form.

The step length grows with distance: dt(t) = clamp(cone * t, shortest, longest). Let u(t) be the number of steps from
the camera to distance t, as a continuous quantity with dt/du = dt(t):

    t < ta = shortest / cone          u = t / shortest
    ta <= t < tb = longest / cone     u = ua + ln(t / ta) / cone
    t >= tb                           u = ub + (t - tb) / longest

and let t(u) be its inverse. Interval k of a ray that starts at t0 with jitter j goes from t(u(t0) + j + k) to
t(u(t0) + j + k + 1). Each interval can be computed independently of the others. So a backend may skip empty space, or
compute all k at once, and still gets the same intervals. With cone = 0 interval k starts at t0 + (j + k) * shortest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from raymine.errors import ConfigError

MOST = 1 << 24
"""Most steps of a ray: float32 cannot distinguish more."""


@dataclass(frozen=True)
class Spacing:
    """shortest, longest: step lengths in world units. cone: step length / distance in between; 0: constant steps."""

    shortest: float = 5e-3
    longest: float = 1e10
    cone: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.shortest <= self.longest and math.isfinite(self.longest)):
            raise ConfigError(
                f"step lengths must satisfy 0 < shortest <= longest, got {self.shortest} and {self.longest}."
            )
        if not 0 <= self.cone < 1:
            raise ConfigError(f"`cone` must be in [0, 1), got {self.cone}.")

    @cached_property
    def knots(self) -> tuple[float, float, float, float]:
        """(ta, tb, ua, ub) of the module docstring; all infinite with cone = 0."""
        if self.cone == 0:
            return math.inf, math.inf, math.inf, math.inf
        ta, tb = self.shortest / self.cone, self.longest / self.cone
        ua = ta / self.shortest
        return ta, tb, ua, ua + math.log(tb / ta) / self.cone

    def count_at(self, t: Tensor) -> Tensor:
        """u(t), elementwise: distances in world units of any shape -> steps. Differentiable."""
        _check_floating("t", t)
        if self.cone == 0:
            return t / self.shortest
        ta, tb, ua, ub = self.knots
        middle = ua + torch.log(t.clamp(ta, tb) / ta) / self.cone
        return torch.where(t < ta, t / self.shortest, torch.where(t < tb, middle, ub + (t - tb) / self.longest))

    def distance_at(self, u: Tensor) -> Tensor:
        """t(u), elementwise: steps of any shape -> distances in world units. Differentiable."""
        _check_floating("u", u)
        if self.cone == 0:
            return u * self.shortest
        ta, tb, ua, ub = self.knots
        middle = ta * torch.exp((u.clamp(ua, ub) - ua) * self.cone)
        return torch.where(u < ua, u * self.shortest, torch.where(u < ub, middle, tb + (u - ub) * self.longest))


def _check_floating(name: str, value: Tensor) -> None:
    if not value.is_floating_point():
        raise ConfigError(f"`{name}` must be floating point, got {value.dtype}.")


def too_many(spacing: Spacing) -> ConfigError:
    """The error for a ray with more than MOST steps."""
    return ConfigError(
        f"steps of {spacing.shortest:g} give a ray more than {MOST} steps. Take longer steps, or a nearer `far`."
    )

"""Where rays begin and end, and the normalised distance s in 0..1 along them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks

NEAREST = 1e-6
"""Smallest near / far with lindisp, where near = 0 would have an infinite disparity."""


@dataclass(frozen=True)
class RaySpan:
    """Where rays begin and end, and how s in 0..1 maps to distance.

    near, far: distances: a number for all rays (then `n_rays` is needed), or [R] per ray.
    spacing: "uniform" is linear in distance, t = (1 - s) near + s far. "lindisp" is linear in disparity,
        1/t = (1 - s)/near + s/far; a `near` [R] below NEAREST * far is raised to that.

    A ray is a miss if near or far is not finite, if far <= near, or with lindisp if far <= 0. All samples of such a ray
    have length 0 and lie at `near`, or at 0 if that is not finite.
    """

    near: float | Tensor
    far: float | Tensor
    n_rays: int | None = None
    spacing: Literal["uniform", "lindisp"] = "lindisp"

    def __post_init__(self) -> None:
        if self.spacing not in ("uniform", "lindisp"):
            raise ConfigError(f"`spacing` must be uniform or lindisp, got {self.spacing!r}.")
        tensors = {name: value for name, value in (("near", self.near), ("far", self.far)) if isinstance(value, Tensor)}
        if tensors:
            checks.numeric(**tensors)
        rays = self.rays
        for name, value in (("near", self.near), ("far", self.far)):
            if isinstance(value, Tensor):
                if tuple(value.shape) != (rays,):
                    raise ConfigError(f"`{name}` must be a number or of shape [{rays}], got {list(value.shape)}.")
            elif not math.isfinite(value):
                raise ConfigError(f"`{name}` must be finite, got {value}. With lindisp a far of 1e6 is as good.")
        if not isinstance(self.near, Tensor):
            if self.spacing == "lindisp" and self.near <= 0:
                raise ConfigError(f"`near` must be positive with lindisp, got {self.near}. Raise it, or use uniform.")
            if not isinstance(self.far, Tensor) and self.far <= self.near:
                raise ConfigError(f"`far` must be beyond `near`, got near {self.near} and far {self.far}.")

    @property
    def rays(self) -> int:
        """The number of rays, R."""
        for value in (self.near, self.far):
            if isinstance(value, Tensor):
                if value.ndim != 1 or self.n_rays not in (None, value.shape[0]):
                    raise ConfigError(f"near and far must be of shape [R] with R = n_rays, got {list(value.shape)}.")
                return value.shape[0]
        if self.n_rays is None or not 0 <= self.n_rays < 2**31:
            raise ConfigError(f"`n_rays` must be given when near and far are numbers, got {self.n_rays}.")
        return self.n_rays

    def distances(self, s: Tensor) -> Tensor:
        """s [R, n] in 0..1 -> distances [R, n]. Differentiable."""
        checks.reals(s=s)
        if s.ndim != 2 or s.shape[0] != self.rays:
            raise ConfigError(f"`s` must have shape [{self.rays}, n], got {list(s.shape)}.")
        for part in (self.near, self.far):
            checks.together(s=s, near=part if isinstance(part, Tensor) else None)
        kind = s.dtype
        # In half precision, a distance above 65504 would become infinite, and the ray a miss.
        work = torch.promote_types(kind, torch.float32)
        near, far = (
            (x.to(work) if isinstance(x, Tensor) else torch.full((), x, dtype=work, device=s.device))
            for x in (self.near, self.far)
        )
        s = s.to(work)
        near, far = torch.broadcast_tensors(near, far)
        hit, low, high = self._ends(near[..., None], far[..., None])
        t = low * (1 - s) + high * s if self.spacing == "uniform" else 1 / (s / high + (1 - s) / low)
        return torch.where(hit, t, torch.where(torch.isfinite(near), near, 0.0)[..., None]).to(kind)

    def normalised(self, t: Tensor, ray: Tensor) -> Tensor:
        """The inverse of `distances` for packed samples: distances t [B] on the rays `ray` [B] -> s [B] in 0..1.

        `ray`: int64 indices of rays. Distances before near give 0, those behind far give 1, and every distance on a ray
        that misses gives 0. Differentiable in t.
        """
        checks.reals(t=t)
        if t.ndim != 1:
            raise ConfigError(f"`t` must have shape [B], got {list(t.shape)}.")
        ray = checks.within("ray", ray, self.rays, t.device, len(t))
        for name, part in (("near", self.near), ("far", self.far)):
            checks.together(t=t, **{name: part if isinstance(part, Tensor) else None})
        work = torch.promote_types(t.dtype, torch.float32)
        near, far = (
            x.to(work)[ray] if isinstance(x, Tensor) else torch.full_like(t, x, dtype=work)
            for x in (self.near, self.far)
        )
        hit, low, high = self._ends(near, far)
        # Clamped first, so that a distance of 0 or below does not become a disparity of infinity or below 0.
        at = torch.minimum(torch.maximum(t.to(work), low), high)
        if self.spacing == "uniform":
            s = (at - low) / (high - low)
        else:
            s = (1 / low - 1 / at) / (1 / low - 1 / high)
        return torch.where(hit, s.clamp(0.0, 1.0), 0.0).to(t.dtype)

    def _ends(self, near: Tensor, far: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which rays have a length, and the near and far that are computed with.

        Misses are computed with the dummy span 1..2: infinite intermediate values would make gradients NaN.
        """
        hit = (near < far) & torch.isfinite(near) & torch.isfinite(far)
        if self.spacing == "lindisp":
            hit = hit & (far > 0)
        low, high = torch.where(hit, near, 1.0), torch.where(hit, far, 2.0)
        return hit, torch.maximum(low, NEAREST * high) if self.spacing == "lindisp" else low, high

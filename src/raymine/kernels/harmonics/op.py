"""Real spherical harmonics of directions: checks and dispatch (definition in `reference`)."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.harmonics import reference
from raymine.kernels.harmonics.reference import MOST_DEGREE

__all__ = ["MOST_DEGREE", "harmonics"]


def harmonics(direction: Tensor, degree: int) -> Tensor:
    """Unit directions [n, 3] -> [n, degree^2], in the type of `direction`: bands 0 .. degree - 1.

    degree: 1 .. MOST_DEGREE. Differentiable, any number of times. The kernels handle float32 directions that need no
    gradient, which is the usual case for rays. The reference handles everything else.
    """
    if direction.ndim != 2 or direction.shape[1] != 3 or not direction.is_floating_point():
        raise ConfigError(
            f"`direction` must be floating-point of shape [n, 3], got {direction.dtype} of shape "
            f"{list(direction.shape)}."
        )
    if not 1 <= degree <= MOST_DEGREE:
        raise ConfigError(f"`degree` must be in 1 .. {MOST_DEGREE}, got {degree}.")
    backend = dispatch.choose("harmonics", direction.device)
    needs_gradient = direction.requires_grad and torch.is_grad_enabled()
    if backend == "reference" or needs_gradient or direction.dtype != torch.float32:
        return reference.harmonics(direction, degree)
    with dispatch.kernel_lock:
        return dispatch.kernels("harmonics", backend).harmonics(direction, degree)

"""Loss and blame of packed samples: checks and dispatch (definition in `reference`). Not differentiable."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.activations import CAP as CAP
from raymine.kernels.judge import reference
from raymine.kernels.packed import Samples


class Judged(NamedTuple):
    """gradient [B, 4] of the pre-activations (colour, density), size [B]: its norm; loss [R], error [R]: mean square.

    Where a gradient is not finite, size is 0, and so is the loss not finite.
    """

    gradient: Tensor
    size: Tensor
    loss: Tensor
    error: Tensor


class Wanted(NamedTuple):
    """What rays should show: colour [R, 3] over the background [R, 3]; weight [R], 0 where a pixel is masked out."""

    colour: Tensor
    background: Tensor
    weight: Tensor


def judge(
    colour: Tensor, density: Tensor, samples: Samples, wanted: Wanted, delta: float = math.inf, stop: float = 1e-4
) -> Judged:
    """Render pre-activations colour [B, 3] and density [B], compare with what is wanted, and find who is to blame.

    The loss is the weighted mean over rays and channels of the square, or of Huber's loss with threshold `delta`. Not
    differentiable: the gradient is the result.
    """
    n, rays = len(samples), samples.n_rays
    for name, value, shape in (
        ("colour", colour, (n, 3)),
        ("density", density, (n,)),
        ("wanted.colour", wanted.colour, (rays, 3)),
        ("wanted.background", wanted.background, (rays, 3)),
        ("wanted.weight", wanted.weight, (rays,)),
    ):
        if tuple(value.shape) != shape:
            raise ConfigError(f"`{name}` must have shape {list(shape)}, got {list(value.shape)}.")
    intervals = (samples.t_start, samples.t_end, samples.first, samples.count)
    rows = (colour.detach(), density.detach(), *intervals, wanted.background, wanted.colour, wanted.weight)
    backend = dispatch.choose("judge", density.device) if density.dtype == torch.float32 else "reference"
    if backend == "cpu":
        from raymine.kernels.judge import cpu

        with dispatch.kernel_lock:
            return Judged(*cpu.judge(*rows, delta, stop))
    if backend == "gpu":
        from raymine.kernels.judge import gpu

        return Judged(*gpu.judge_packed(*rows, delta, stop))
    return Judged(*reference.judge(*rows, delta, stop))

"""Loss of rays, and its gradient with respect to the pre-activations of each sample: checks and dispatch.

The definition is in `reference`. Not differentiable.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks, dispatch
from raymine.kernels.activations import CAP as CAP
from raymine.kernels.judge import reference
from raymine.kernels.packed import Samples


class Judged(NamedTuple):
    """Result of `judge`.

    gradient [B, 4]: of the summed loss with respect to the pre-activations: colour (3), density (1).
    size [B]: norm of each sample's gradient; 0 where it is not finite (then the loss of its ray is not finite either).
    loss [R]: share of each ray in the loss. error [R]: mean squared error over the channels of each ray.
    """

    gradient: Tensor
    size: Tensor
    loss: Tensor
    error: Tensor


class Wanted(NamedTuple):
    """Targets of rays: colour [R, 3] and background [R, 3] in 0..1; weight [R], 0 where a pixel is masked out.

    colour is what a ray should show, already blended over the background.
    """

    colour: Tensor
    background: Tensor
    weight: Tensor


def curve(t: Tensor) -> Tensor:
    """Distances t >= 0 of any shape -> positions in 0..1 on the curve t / (1 + t) of the distortion. Differentiable."""
    checks.reals(t=t)
    return reference.curve(t)


def fade_factor(middle: Tensor, fade: float) -> Tensor:
    """The factors of `judge` on the gradients of samples with these midpoints, of any shape; fade > 0."""
    checks.reals(middle=middle)
    checks.numbers(fade=fade)
    if not 0 < fade < math.inf:
        raise ConfigError(f"`fade` must be above 0, got {fade}.")
    return reference.fade_factor(middle, fade)


def judge(
    colour: Tensor,
    density: Tensor,
    samples: Samples,
    wanted: Wanted,
    delta: float = math.inf,
    stop: float = 1e-4,
    *,
    distortion: float = 0.0,
    fade: float = 0.0,
    divisor: Tensor | None = None,
) -> Judged:
    """Render rays from pre-activations colour [B, 3] and density [B], and compare them with their targets.

    Returns the loss of each ray, and the gradient of the loss with respect to each sample's pre-activations. The loss
    is the weighted mean over rays and channels of the squared error, or of Huber's loss with threshold `delta` if that
    is finite. stop: samples where the transmittance is below it get weight 0. Not differentiable.

    distortion: factor of the distortion of the weights along a ray, which is added to the loss (`reference`); the
    intervals of a ray must ascend then. fade: the gradients of samples nearer than this are multiplied by the square of
    distance / fade.

    divisor []: what the mean over rays divides by, if these are a part of the rays; None: the sum of their weights. At
    least 1 either way.
    """
    n, rays, device = len(samples), samples.n_rays, density.device
    named = (
        ("density", density, (n,)),
        ("colour", colour, (n, 3)),
        ("t_start", samples.t_start, (n,)),
        ("t_end", samples.t_end, (n,)),
        ("wanted.colour", wanted.colour, (rays, 3)),
        ("wanted.background", wanted.background, (rays, 3)),
        ("wanted.weight", wanted.weight, (rays,)),
    )
    kind = checks.floats(named, device)
    if not delta > 0:
        raise ConfigError(f"`delta` must be above 0, got {delta}. Infinity means the squared error.")
    checks.numbers(stop=stop, distortion=distortion, fade=fade)
    if not (0 <= distortion < math.inf and 0 <= fade < math.inf):
        raise ConfigError(f"`distortion` and `fade` must be 0 or more, got {distortion} and {fade}.")
    if divisor is not None:
        checks.shapes([("divisor", divisor, ())], device)
    intervals = (samples.t_start, samples.t_end, *checks.pack(samples.first, samples.count, n, device))
    rows = (colour.detach(), density.detach(), *intervals, wanted.background, wanted.colour, wanted.weight)
    backend = dispatch.choose("judge", device) if kind is torch.float32 else "reference"
    if backend == "reference":
        return Judged(*reference.judge(*rows, delta, stop, distortion, fade, divisor))
    with dispatch.kernel_lock:
        return Judged(*dispatch.kernels("judge", backend).judge_packed(*rows, delta, stop, distortion, fade, divisor))

"""Loss of each ray and its gradient with respect to the pre-activations of each sample, in plain torch: the definition.

Primes mark pre-activations.

    density = exp(min(density' - 1, CAP)), with derivative = density, also above the cap
    colour = sigmoid(colour')
    e = rendered - target, per channel
    l(e) = e^2, or for a finite delta Huber's loss: e^2 / 2 if |e| <= delta, else delta (|e| - delta / 2)
    loss_r = weight_r / (3 max(1, sum of weights)) * (sum of l(e) over channels + 3 distortion D_r)
    gradient_i = d(sum of loss_r) / d(colour'_i, density'_i) * min(1, (m_i / fade)^2),   m_i the midpoint
    size_i = |gradient_i|_2, or 0 where that is not finite

D_r is the distortion of a ray (mip-NeRF 360), small if its weights w are concentrated in one place. Distances are on
the curve s(t) = t / (1 + t), so that all of space becomes 0..1. With a_i and b_i the ends of interval i on that curve,
c_i their mean:

    D = sum over i, j of w_i w_j |c_i - c_j| + 1/3 sum over i of w_i^2 (b_i - a_i)

The factor with `fade` compensates for the density of samples in front of the cameras: a point at distance t is seen by
about 1 / t^2 as many rays as one at distance `fade`, and without the factor fog forms there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from raymine.kernels.activations import CAP
from raymine.kernels.composite.reference import composite


def judge(
    colour: Tensor,
    density: Tensor,
    t_start: Tensor,
    t_end: Tensor,
    first: Tensor,
    count: Tensor,
    background: Tensor,
    target: Tensor,
    weight: Tensor,
    delta: float,
    stop: float,
    distortion: float = 0.0,
    fade: float = 0.0,
    divisor: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """-> gradient [B, 4], size [B], loss [R], mean squared error over channels [R]. Infinite delta: squared error."""
    raw_colour, raw_density = colour.detach().requires_grad_(), density.detach().requires_grad_()
    with torch.enable_grad():
        # Above the cap the value is constant but the derivative is that of exp, so that density can decrease again.
        exponent = raw_density - 1
        active = torch.exp(exponent.clamp_max(CAP)).detach() * (1 + (exponent - exponent.detach()))
        rendered, _, _, weights = composite(
            active, torch.sigmoid(raw_colour), t_start, t_end, first, count, background, stop
        )
        each = squares(rendered - target, delta).sum(1)
        if distortion > 0:
            each = each + 3 * distortion * distortions(weights, t_start, t_end, first, count)
        loss = each * weight / (3 * (weight.sum() if divisor is None else divisor).clamp_min(1))
        grads = torch.autograd.grad(loss.sum(), (raw_colour, raw_density))
    error = (rendered.detach() - target).square().mean(1)
    gradient = torch.cat((grads[0], grads[1][:, None]), 1)
    if fade > 0:
        gradient = gradient * fade_factor((t_start + t_end) * 0.5, fade)[:, None]
    size = torch.linalg.vector_norm(gradient, dim=1)
    return gradient, torch.where(torch.isfinite(size), size, 0.0), loss.detach(), error


def squares(error: Tensor, delta: float) -> Tensor:
    """Elementwise loss of errors of any shape: the square, or Huber's loss if `delta` is finite. Differentiable."""
    squared = error * error
    if math.isinf(delta):
        return squared
    size = error.abs()
    return torch.where(size <= delta, 0.5 * squared, delta * (size - 0.5 * delta))


def curve(t: Tensor) -> Tensor:
    """Distances t >= 0 of any shape -> 0..1. Differentiable."""
    return t / (1 + t)


def fade_factor(middle: Tensor, fade: float) -> Tensor:
    """Factors [B] of the gradients of samples with midpoints [B]; fade > 0."""
    return (middle / fade).square().clamp_max(1.0)


def distortions(weights: Tensor, t_start: Tensor, t_end: Tensor, first: Tensor, count: Tensor) -> Tensor:
    """The distortion D [R] of rays with packed samples [B]. Differentiable in the weights.

    The double sum is 2 * sum over i of w_i (c_i * W_i - C_i), with W_i and C_i the sums of w_j and w_j c_j over j < i.
    """
    near, far = curve(t_start), curve(t_end)
    ray_id = torch.repeat_interleave(torch.arange(len(first), device=first.device), count)
    middle = (near + far) * 0.5
    before, moments = (_before(part, ray_id, first) for part in (weights, weights * middle))
    each = 2 * weights * (middle * before - moments) + weights * weights * (far - near) / 3
    return weights.new_zeros(len(first)).index_add(0, ray_id, each)


def _before(values: Tensor, ray_id: Tensor, first: Tensor) -> Tensor:
    """Sums [B] of values [B] over the earlier samples of the same ray, through float64."""
    if not len(values):
        return values
    wide = values.double()
    running = wide.cumsum(0) - wide
    return (running - running[first.clamp(max=len(values) - 1)][ray_id]).to(values.dtype)

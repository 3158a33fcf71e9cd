"""Loss of each ray and its gradient with respect to the pre-activations of each sample, in plain torch: the definition.

Primes mark pre-activations.

    density = exp(min(density' - 1, CAP)), with derivative = density, also above the cap
    colour = sigmoid(colour')
    e = rendered - target, per channel
    l(e) = e^2, or for a finite delta Huber's loss: e^2 / 2 if |e| <= delta, else delta (|e| - delta / 2)
    loss_r = weight_r / (3 max(1, sum of weights)) * sum of l(e) over channels
    gradient_i = d(sum of loss_r) / d(colour'_i, density'_i)
    size_i = |gradient_i|_2, or 0 where that is not finite
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """-> gradient [B, 4], size [B], loss [R], mean squared error over channels [R]. Infinite delta: squared error."""
    raw_colour, raw_density = colour.detach().requires_grad_(), density.detach().requires_grad_()
    with torch.enable_grad():
        # Above the cap the value is constant but the derivative is that of exp, so that density can decrease again.
        exponent = raw_density - 1
        active = torch.exp(exponent.clamp_max(CAP)).detach() * (1 + (exponent - exponent.detach()))
        rendered = composite(active, torch.sigmoid(raw_colour), t_start, t_end, first, count, background, stop)[0]
        each = squares(rendered - target, delta)
        loss = each.sum(1) * weight / (3 * weight.sum().clamp_min(1))
        grads = torch.autograd.grad(loss.sum(), (raw_colour, raw_density))
    error = (rendered.detach() - target).square().mean(1)
    gradient = torch.cat((grads[0], grads[1][:, None]), 1)
    size = torch.linalg.vector_norm(gradient, dim=1)
    return gradient, torch.where(torch.isfinite(size), size, 0.0), loss.detach(), error


def squares(error: Tensor, delta: float) -> Tensor:
    """Elementwise loss of errors of any shape: the square, or Huber's loss if `delta` is finite. Differentiable."""
    squared = error * error
    if math.isinf(delta):
        return squared
    size = error.abs()
    return torch.where(size <= delta, 0.5 * squared, delta * (size - 0.5 * delta))

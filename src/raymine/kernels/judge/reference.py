"""From pre-activations to the loss of each ray and the gradient of every sample, in plain torch: the definition.

density = exp(min(density' - 1, CAP)),   colour = sigmoid(colour')        (the gradient of the cap is that of exp)
e = rendered - target per channel;   each = e^2, or Huber's with threshold delta: e^2 / 2 up to it, linear beyond
loss_r = share_r * sum over channels of each,      share_r = weight_r / (3 max(1, sum of weights))
gradient_i = d(sum of loss_r) / d(colour'_i, density'_i),   size_i = |gradient_i|_2, 0 where that is not finite
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
    """-> gradient [B, 4], size [B], loss [R], mean squared error over channels [R]. delta: infinite for the square."""
    raw_colour, raw_density = colour.detach().requires_grad_(), density.detach().requires_grad_()
    with torch.enable_grad():
        # Behind the cap the value stays and the slope is that of the exponential, so that density can come down.
        exponent = raw_density - 1
        active = torch.exp(exponent.clamp_max(CAP)).detach() * (1 + exponent - exponent.detach())
        rendered = composite(active, torch.sigmoid(raw_colour), t_start, t_end, first, count, background, stop)[0]
        each = squares(rendered - target, delta)
        loss = each.sum(1) * weight / (3 * weight.sum().clamp_min(1))
        grads = torch.autograd.grad(loss.sum(), (raw_colour, raw_density))
    error = (rendered.detach() - target).square().mean(1)
    gradient = torch.cat((grads[0], grads[1][:, None]), 1)
    size = torch.linalg.vector_norm(gradient, dim=1)
    return gradient, torch.where(torch.isfinite(size), size, 0.0), loss.detach(), error


def squares(error: Tensor, delta: float) -> Tensor:
    """Elementwise: the square, or Huber's loss where `delta` is finite."""
    squared = error * error
    if math.isinf(delta):
        return squared
    size = error.abs()
    return torch.where(size <= delta, 0.5 * squared, delta * (size - 0.5 * delta))

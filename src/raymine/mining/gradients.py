"""Gradients of the loss with respect to the outputs of a field. Samples are chosen by them and trained with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks

Told = TypeVar("Told")


def output_gradients(
    objective: Callable[..., tuple[Tensor, Told]], outputs: Sequence[Tensor], scale: float = 1.0, *, alone: bool = False
) -> tuple[list[Tensor], Told]:
    """Gradients of the loss with respect to each of `outputs` [B, ...], and the second result of the objective.

    objective: outputs -> (loss [], anything). If the objective depends on parameters of its own (an exposure, the
    networks of an earlier round), the same backward pass adds their gradients, times `scale`, to `.grad`.
    scale: factor on the loss during the backward pass, for graphs in half precision. The returned gradients are not
    scaled. alone: gradients of parameters are left as they are.
    An output that the loss does not depend on has gradient 0.
    """
    checks.reals(**{f"outputs[{i}]": part for i, part in enumerate(outputs)})
    if not 0 < scale < math.inf:
        raise ConfigError(f"`scale` must be above 0 and finite, got {scale}.")
    leaves = [part.detach().requires_grad_() for part in outputs]
    with torch.enable_grad():
        loss, told = objective(*leaves)
    if loss.numel() != 1 or not loss.is_floating_point():
        raise ConfigError(
            f"the `objective` must return a loss of shape [] first, got {loss.dtype} of shape {list(loss.shape)}."
        )
    if alone and loss.requires_grad:
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
        return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)], told
    if loss.requires_grad:
        (loss if scale == 1 else loss * scale).backward()
    grads = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    return (grads if scale == 1 else [grad / scale for grad in grads]), told

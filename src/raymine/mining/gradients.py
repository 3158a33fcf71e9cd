"""Gradients of an objective in the outputs of a field, which are what samples are chosen by and trained with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Told = TypeVar("Told")


def output_gradients(
    objective: Callable[..., tuple[Tensor, Told]], outputs: Sequence[Tensor], scale: float = 1.0
) -> tuple[list[Tensor], Told]:
    """Gradients of the loss in each of `outputs` [B, ...], and what else the objective tells.

    objective: outputs -> (loss [], anything). Parameters that the objective itself holds (an exposure, the networks of
    an earlier round) get their gradients, times `scale`, in `.grad`, by the same backward pass. `scale` multiplies the
    loss on the way, for graphs in half precision; the gradients that are returned do not have it. An output that the
    loss does not depend on has a gradient of 0.
    """
    leaves = [part.detach().requires_grad_() for part in outputs]
    with torch.enable_grad():
        loss, told = objective(*leaves)
    if loss.requires_grad:
        (loss if scale == 1 else loss * scale).backward()
    grads = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    return (grads if scale == 1 else [grad / scale for grad in grads]), told

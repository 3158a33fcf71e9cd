"""Gradients that can be differentiated again, for ops whose backward kernels cannot be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def gradients_with_graph(
    function: Callable[..., Tensor | tuple[Tensor, ...]],
    tensors: Sequence[Tensor],
    needed: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Gradients of function(*tensors), the reference of an op, with respect to the needed tensors; None for the others.

    grads: the gradients of its results; None counts as 0. What is returned has a graph of its own.
    """
    # Views are new graph nodes. So autograd stops at them, even if one of the tensors depends on another.
    ours = [tensor.view_as(tensor) for tensor in tensors]
    results = function(*ours)
    results = (results,) if isinstance(results, Tensor) else results
    given = [(out, grad.to(out.dtype)) for out, grad in zip(results, grads, strict=True) if grad is not None]
    wanted = [tensor for tensor, need in zip(ours, needed, strict=True) if need]
    outs, arrived = zip(*given, strict=True)
    found = iter(torch.autograd.grad(outs, wanted, arrived, create_graph=True, allow_unused=True))
    return [next(found) if need else None for need in needed]

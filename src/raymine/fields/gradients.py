"""Accumulation of dense and sparse parameter gradients, for fields that compute them without autograd."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def add_gradient(parameter: nn.Parameter, grad: Tensor) -> None:
    """Add `grad`, dense or row-sparse, to `parameter.grad`, as autograd would."""
    parameter.grad = grad if parameter.grad is None else _sum(parameter.grad, grad)


def _sum(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two gradients. Sparse rows are unique but not sorted, while torch's own sum assumes sorted rows."""
    if a.is_sparse and b.is_sparse:
        rows = torch.cat((a._indices(), b._indices()), 1)
        with torch.sparse.check_sparse_tensor_invariants(False):
            return torch.sparse_coo_tensor(rows, torch.cat((a._values(), b._values())), a.shape).coalesce()
    if not (a.is_sparse or b.is_sparse):
        return a + b
    rows, dense = (a, b) if a.is_sparse else (b, a)
    return dense.index_add(0, rows._indices()[0], rows._values())

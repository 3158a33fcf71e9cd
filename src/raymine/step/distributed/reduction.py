"""The sum of gradients over the ranks of a run.

Three kinds of messages, at most:

1. One small one on the host: for every parameter whether it has a gradient, whether that is a list of rows, and how
   many; and the counts of samples.
2. The gradients of all dense parameters, with loss and error, as one vector.
3. For each table (a parameter of a sparse group) with few touched rows, rows and values of all ranks; otherwise its
   whole gradient.

The rule for 3: a sum of the whole table sends 2 (W - 1) / W of its bytes from each rank; a list of rows sends 8 + 4 F
bytes for each of the n rows that the ranks touched together. The cheaper one is used. Where tensors go by gloo, the
touched rows of a whole gradient are looked for first. With NCCL that would make the host wait for the device, and
links are fast, so whole gradients stay whole there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from raymine.step.distributed.ranks import Ranks
from raymine.step.optimiser import Optimiser

_NONE, _ROWS, _WHOLE = 0, 1, 2
"""Kinds of gradients."""


class Reduced(NamedTuple):
    """Sums over all ranks: loss [], mean squared error [], samples that were placed and trained on."""

    loss: Tensor
    mse: Tensor
    marched: int
    trained: int


class _Own(NamedTuple):
    """The gradient of one parameter on this rank."""

    name: str
    parameter: nn.Parameter
    kind: int
    rows: int


def reduce_step(ranks: Ranks, optimiser: Optimiser, loss: Tensor, mse: Tensor, marched: int, trained: int) -> Reduced:
    """Sum `.grad` of every parameter over the ranks, and the numbers of the step. Every rank gets the same bits."""
    own = [_own(ranks, optimiser, name, parameter) for name, parameter in optimiser.parameters.items()]
    header = ranks.numbers([marched, trained, *(number for each in own for number in (each.kind, each.rows))])
    sums = [sum(rank[place] for rank in header) for place in range(2)]
    joined: list[nn.Parameter] = []
    for place, each in enumerate(own):
        kinds = [rank[2 + 2 * place] for rank in header]
        counts = [rank[3 + 2 * place] for rank in header]
        if max(kinds) == _NONE:
            continue
        if optimiser.group_of(each.name).sparse:
            rows = max(kinds) == _ROWS and worth_rows(each.parameter.shape, sum(counts), ranks.world)
            each.parameter.grad = _summed_rows(ranks, each, counts) if rows else _summed_whole(ranks, each.parameter)
        else:
            joined.append(each.parameter)
    numbers = torch.stack((loss.detach().float(), mse.detach().float()))
    flat = ranks.sum(torch.cat([numbers, *(_whole(parameter).reshape(-1).float() for parameter in joined)]))
    start = 2
    for parameter in joined:
        part = flat[start : start + parameter.numel()]
        parameter.grad = part.view_as(parameter).to(parameter.dtype)
        start += parameter.numel()
    return Reduced(flat[0], flat[1], *sums)


def worth_rows(shape: torch.Size, rows: int, world: int) -> bool:
    """Whether `rows` touched rows, of all ranks together, are fewer bytes than the sum of a whole table [n, F]."""
    width = shape[1:].numel()
    return rows * (8 + 4 * width) < 2 * (world - 1) / max(1, world) * shape[0] * 4 * width


def _own(ranks: Ranks, optimiser: Optimiser, name: str, parameter: nn.Parameter) -> _Own:
    grad, group = parameter.grad, optimiser.group_of(name)
    if grad is None:
        return _Own(name, parameter, _NONE, 0)
    if not group.sparse:
        return _Own(name, parameter, _WHOLE, 0)
    if grad.is_sparse and not grad.is_coalesced():
        grad = parameter.grad = grad.coalesce()
    searched = ranks.backend == "gloo" and ranks.world > 1
    if not grad.is_sparse and searched and grad.ndim == 2 and optimiser.config.decay * group.decay == 0:
        touched = (grad != 0).any(1).nonzero()[:, 0]
        if worth_rows(grad.shape, len(touched) * ranks.world, ranks.world):
            grad = parameter.grad = _sparse(touched, grad[touched], grad.shape)
    return _Own(name, parameter, _ROWS, len(grad._values())) if grad.is_sparse else _Own(name, parameter, _WHOLE, 0)


def _summed_rows(ranks: Ranks, own: _Own, counts: list[int]) -> Tensor:
    """The sum of row gradients over all ranks, with each row once."""
    parameter, grad = own.parameter, own.parameter.grad
    if grad is None:
        rows = torch.zeros(0, dtype=torch.int64, device=parameter.device)
        values = parameter.detach().new_zeros(0, *parameter.shape[1:])
    else:
        rows, values = grad._indices()[0], grad._values()
    rows, values = ranks.gather_rows(rows, values, counts)
    distinct, place = rows.unique(return_inverse=True)
    summed = values.new_zeros(len(distinct), *values.shape[1:])
    # Rank by rank: a row occurs once in each, so no sum depends on the order of additions, which differs on CUDA.
    for part, at in zip(values.split(counts), place.split(counts), strict=True):
        summed.index_add_(0, at, part)
    return _sparse(distinct, summed, parameter.shape)


def _summed_whole(ranks: Ranks, parameter: nn.Parameter) -> Tensor:
    """The sum of whole gradients over all ranks, in place of the own one: a table may have 100 MB."""
    whole = _whole(parameter)
    ranks.add_up(whole)
    return whole


def _sparse(rows: Tensor, values: Tensor, shape: torch.Size) -> Tensor:
    with torch.sparse.check_sparse_tensor_invariants(False):
        return torch.sparse_coo_tensor(rows[None], values, shape, is_coalesced=True)


def _whole(parameter: nn.Parameter) -> Tensor:
    """The gradient of a parameter, in its shape; 0 where it has none."""
    grad = parameter.grad
    if grad is None:
        return torch.zeros_like(parameter)
    if not grad.is_sparse:
        return grad.detach()
    return torch.zeros_like(parameter).index_add_(0, grad._indices()[0], grad._values())

"""Resampling of batched rays by a CDF: checks and dispatch (definition in `reference`). Not differentiable."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks, dispatch
from raymine.kernels.resample import reference

MOST_EDGES = 4096
"""Edges of a ray, before and after, that a program of the Triton kernel takes; longer rays go to the reference."""


@torch.no_grad()
def resample(edges: Tensor, cdfs: Tensor, offset: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Resample every ray to n intervals of equal mass: edges [..., n + 1] and samples [..., n]. Not differentiable.

    edges, cdfs: [..., K + 1] of one dtype, ascending along each ray. offset: [...], the share in 0..1 of their spacing
    by which the samples of a ray are shifted; 1/2 puts each into the middle of its share of the mass.
    """
    checks.alike(edges=edges, cdfs=cdfs)
    checks.reals(edges=edges, offset=offset)
    if not edges.ndim or offset.shape != edges.shape[:-1]:
        raise ConfigError(
            f"`offset` must have one number for each ray of `edges`, {list(edges.shape)}; got {list(offset.shape)}."
        )
    checks.whole(low=1, high=(2**31 - 1) // max(edges.shape[:-1].numel(), 1), n=n)
    fits = 0 < edges.shape[-1] <= MOST_EDGES and n < MOST_EDGES
    if fits and edges.dtype is torch.float32 and dispatch.choose("resample", edges.device) == "gpu":
        with dispatch.kernel_lock:
            return dispatch.kernels("resample", "gpu").resample(edges, cdfs, offset.to(edges.dtype), n)
    return reference.resample(edges, cdfs, offset.to(edges.dtype), n)

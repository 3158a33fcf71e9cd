"""Resampling of batched rays by a CDF in plain torch: the definition.

A ray has edges t_0 <= .. <= t_K and a CDF c_0 <= .. <= c_K at them, linear in between. Its new samples s_k are the
points where the CDF takes the values

    u_k = c_0 + (k + o) (c_K - c_0) / n,   k = 0 .. n - 1          o: one offset in 0..1 per ray

and its new edges lie half-way between neighbouring samples. If a CDF does not rise or is not finite, the edges
themselves take its place, so samples are evenly spaced.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.kernels.inverse_cdf import edges_between, informative, interpolate, neighbours


def resample(edges: Tensor, cdfs: Tensor, offset: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """edges, cdfs [..., K + 1], offset [...] -> new edges [..., n + 1] and samples [..., n]."""
    rays = edges.shape[:-1]
    if not edges.shape[-1]:
        return edges.new_zeros(*rays, n + 1), edges.new_zeros(*rays, n)
    cdfs = informative(edges, cdfs)
    steps = torch.arange(n, device=edges.device, dtype=edges.dtype) + offset[..., None]
    u = cdfs[..., :1] + steps * ((cdfs[..., -1:] - cdfs[..., :1]) / n)
    left, right = neighbours(cdfs, u)
    samples = interpolate(
        u, cdfs.gather(-1, left), cdfs.gather(-1, right), edges.gather(-1, left), edges.gather(-1, right)
    )
    return edges_between(samples, edges[..., 0], edges[..., -1]), samples

"""Inverting the CDF of batched rays in plain torch, without checks: what `resample` and the toolkit share."""

from __future__ import annotations

import torch
from torch import Tensor


def informative(edges: Tensor, cdfs: Tensor) -> Tensor:
    """The CDF [..., K + 1]; replaced by the edges where it does not rise or is not finite."""
    if not edges.shape[-1]:
        return cdfs
    rises = cdfs[..., -1:] - cdfs[..., :1] > torch.finfo(cdfs.dtype).tiny
    return torch.where(rises & torch.isfinite(cdfs).all(-1, keepdim=True), cdfs, edges)


def neighbours(sorted: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """int64 indices [..., m] of the entries of `sorted` [..., n] around each value [..., m].

    Below the first entry both are the first entry; from the last entry on they are the last two entries.
    """
    last = sorted.shape[-1] - 1
    # The search leaves out the last entry, so that values at or above it belong to the last interval.
    found = torch.searchsorted(sorted[..., :-1].contiguous(), values.contiguous(), right=True)
    return (found - 1).clamp_min(0).clamp_max(last), found.clamp_max(last)


def interpolate(u: Tensor, c0: Tensor, c1: Tensor, t0: Tensor, t1: Tensor) -> Tensor:
    """The distance in t0 .. t1 at which a CDF that goes from c0 to c1 reaches u. All have one shape.

    Where it does not rise, the result is t1 if u is above c1, and the middle if not. NaN gives NaN.
    """
    rise = c1 - c0
    flat = torch.where(u > c1, 1.0, torch.where(torch.isnan(u + rise), torch.nan, 0.5)).to(rise.dtype)
    share = torch.where(rise > 0, (u - c0) / rise, flat).clamp(0.0, 1.0)
    # The minimum, and t1 itself for share = 1, keep rounding from moving a point out of its interval. So samples stay
    # in order.
    return torch.where(share < 1, torch.minimum(t0 + share * (t1 - t0), t1), t1 + 0 * share)


def edges_between(samples: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Samples [..., m] in ascending order, ends of the ray [...] -> edges [..., m + 1] half-way between them.

    The first edge mirrors the second about the first sample, and the last edge mirrors the one before it about the last
    sample; both are clamped to low .. high. The interval of a single sample is low .. high.
    """
    low, high = low[..., None], high[..., None]
    if samples.shape[-1] < 2:
        return torch.cat((low, high), -1) if samples.shape[-1] else low[..., :0]
    inner = (samples[..., 1:] + samples[..., :-1]) * 0.5
    first = samples[..., :1] - (samples[..., 1:2] - samples[..., :1]) * 0.5
    last = samples[..., -1:] + (samples[..., -1:] - samples[..., -2:-1]) * 0.5
    return torch.cat((torch.maximum(first, low), inner, torch.minimum(last, high)), -1)

"""What samplers share that place the same number of intervals on every ray: limits, midpoints, packing."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raymine.contracts import FieldInput, Rays, Samples
from raymine.toolkit.boxes import intersect

_PIECE = 1 << 16
"""Points that a network is asked about at a time where it keeps no graph."""


class Intervals(NamedTuple):
    """edges [h, n + 1] of the rays that have samples, and which rays these are: hit [h] int64."""

    edges: Tensor
    hit: Tensor


class Limits(NamedTuple):
    """near, far [R]: where rays begin and end."""

    near: Tensor
    far: Tensor

    def hit(self) -> Tensor:
        """[h] int64: the rays that have a length. On CUDA the host waits for their number."""
        return ((self.near < self.far) & self.far.isfinite()).nonzero()[:, 0]


def limits(rays: Rays, box: Tensor | None) -> Limits:
    """near and far of the rays, clipped to a box [6] (low x, y, z, high x, y, z) if there is one."""
    if box is None:
        return Limits(rays.near, rays.far)
    crossing = intersect(rays.origins, rays.directions, box[None])
    return Limits(torch.maximum(rays.near, crossing.t_near[:, 0]), torch.minimum(rays.far, crossing.t_far[:, 0]))


def midpoints(rays: Rays, intervals: Intervals) -> FieldInput:
    """The midpoints of all intervals, ray by ray, [h * n]."""
    middle = (intervals.edges[:, :-1] + intervals.edges[:, 1:]) * 0.5
    n = middle.shape[1]
    directions = rays.directions[intervals.hit].repeat_interleave(n, 0)
    origins = rays.origins[intervals.hit].repeat_interleave(n, 0)
    time = None if rays.time is None else rays.time[intervals.hit].repeat_interleave(n)
    return FieldInput(torch.addcmul(origins, directions, middle.reshape(-1, 1)), directions, time)


def in_pieces(query: FieldInput) -> list[tuple[Tensor, Tensor | None]]:
    """Positions and times, `_PIECE` at a time."""
    starts = range(0, len(query.positions), _PIECE)
    times = query.time
    return [(query.positions[i : i + _PIECE], None if times is None else times[i : i + _PIECE]) for i in starts]


def packed(intervals: Intervals, rays: int) -> Samples:
    """Intervals as packed samples of `rays` rays; those that were not hit have none."""
    edges, hit = intervals
    n = edges.shape[1] - 1
    count = torch.zeros(rays, dtype=torch.int64, device=edges.device)
    count[hit] = n
    return Samples(
        edges[:, :-1].reshape(-1), edges[:, 1:].reshape(-1), hit.repeat_interleave(n), count.cumsum(0) - count, count
    )

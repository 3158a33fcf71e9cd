"""Intersection of rays with axis-aligned boxes.

A box is the intersection of three slabs. A ray o + t d is inside the slab low .. high of one axis for

    min(t_a, t_b) <= t <= max(t_a, t_b),   t_a = (low - o) / d,   t_b = (high - o) / d

and inside the box where this holds on all three axes: from the largest entry to the smallest exit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks


class Crossing(NamedTuple):
    """t_near, t_far [R, M]: entry and exit in units of the length of the direction. hit [R, M] bool."""

    t_near: Tensor
    t_far: Tensor
    hit: Tensor


def intersect(
    origins: Tensor,
    directions: Tensor,
    boxes: Tensor,
    near: float = 0.0,
    far: float = float("inf"),
    miss: float = float("inf"),
) -> Crossing:
    """Intersect every ray with every box: origins, directions [R, 3]; boxes [M, 6] as low x, y, z, high x, y, z.

    A ray hits a box if some t in near .. far lies in the box, faces included. t_near and t_far are the ends of that
    range of t; both are `miss` if there is no hit. An origin inside a box gives t_near = near.

    A ray parallel to a face is inside that slab for all t or for none. A box of thickness 0 is hit at a single t. There
    is no hit for a box with high < low, for NaN in a ray or a box, or for a direction of zeros. Differentiable in
    origins, directions and boxes; the choice of the face has no gradient.
    """
    _check("origins", origins, 3)
    _check("directions", directions, 3)
    _check("boxes", boxes, 6)
    if origins.shape != directions.shape:
        raise ConfigError(
            f"`origins` and `directions` must have one shape, got {list(origins.shape)} and {list(directions.shape)}."
        )
    checks.together(origins=origins, directions=directions, boxes=boxes)
    checks.numbers(near=near, far=far)
    o, d = origins[:, None], directions[:, None]
    low, high = boxes[None, :, :3], boxes[None, :, 3:]
    parallel = d == 0
    # Dividing by 1 instead of 0 keeps NaN out of the gradients: the quotient is not used, but 0 * inf would be NaN.
    by = torch.where(parallel, torch.ones_like(d), d)
    a, b = (low - o) / by, (high - o) / by
    between = (low <= o) & (o <= high)
    for_ever = torch.full_like(a, torch.inf)
    entry = torch.where(parallel, torch.where(between, -for_ever, for_ever), torch.minimum(a, b))
    leave = torch.where(parallel, torch.where(between, for_ever, -for_ever), torch.maximum(a, b))
    t_near = entry.amax(-1).clamp_min(near)
    t_far = leave.amin(-1).clamp_max(far)
    proper = (low <= high).all(-1) & ~parallel.all(-1) & ~(o.isnan() | d.isnan()).any(-1)
    hit = proper & (t_near <= t_far)
    nothing = torch.full_like(t_near, miss)
    return Crossing(torch.where(hit, t_near, nothing), torch.where(hit, t_far, nothing), hit)


def _check(name: str, value: Tensor, width: int) -> None:
    if value.ndim != 2 or value.shape[1] != width or not value.is_floating_point():
        raise ConfigError(
            f"`{name}` must be floating point of shape [n, {width}], got {value.dtype} of shape {list(value.shape)}."
        )

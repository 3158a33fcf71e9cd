"""Sampling rays in occupancy grids whose boxes may lie anywhere: checks and dispatch. Not differentiable."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks, dispatch
from raymine.kernels.packed import Samples
from raymine.kernels.traverse import reference
from raymine.kernels.traverse.records import Crossings as Crossings
from raymine.kernels.traverse.records import Grids as Grids
from raymine.kernels.traverse.records import Stride as Stride
from raymine.kernels.traverse.records import Traversed as Traversed


@torch.no_grad()
def traverse(
    origins: Tensor,
    directions: Tensor,
    bounds: tuple[Tensor, Tensor],
    grids: Grids,
    stride: Stride,
    mask: Tensor | None = None,
    crossings: Crossings | None = None,
) -> Traversed:
    """Samples of rays in the occupied cells of grids. Boxes may lie anywhere, also inside one another.

    origins, directions: [R, 3] floating point. Distances are in units of the length of the direction.
    bounds: near and far [R]. The first step begins at near.
    mask: [R] bool, the rays to sample; None: all. crossings: of the rays with the boxes, if the caller knows them; they
        are not checked.

    Where boxes overlap, the one that the ray entered last is used. A ray takes steps while the midpoint of a step lies
    in a run of occupied cells. Across an empty cell, it takes steps of the length at the entry of that cell. A ray that
    is NaN, has direction 0 or is masked out gets no samples and ends at near. Distances are computed in float64 and
    returned in the type of near. Not differentiable.
    """
    _check(origins, directions, bounds, grids, stride, mask, crossings)
    near, far = bounds
    if not len(origins) or not grids.binaries.numel():
        none = torch.zeros(0, dtype=torch.int64, device=origins.device)
        nothing, zero = near[:0], none.new_zeros(len(origins))
        samples = Samples(nothing, nothing, none, zero, zero.clone())
        return Traversed(samples, none.bool(), near.clone(), zero.clone(), 0)
    grids = Grids(grids.binaries.bool(), grids.aabbs)
    mask = None if mask is None else mask.bool()
    stride = Stride(stride.step_size if stride.step_size > 0 else 0.0, stride.cone_angle, max(0, stride.limit))
    if crossings is not None:
        crossings = Crossings(crossings.t_sorted, crossings.t_indices.long(), crossings.hits.bool())
    backend = dispatch.choose("traverse", origins.device)
    if backend == "reference":
        return reference.traverse(origins, directions, bounds, grids, stride, mask, crossings)
    # The kernels need one type for all floating-point tensors: float64 if any of them is, else float32.
    given = (origins, directions, near, far, grids.aabbs, *(crossings[:1] if crossings else ()))
    kind = torch.float64 if any(part.dtype == torch.float64 for part in given) else torch.float32
    rays = origins.to(kind), directions.to(kind), (near.to(kind), far.to(kind))
    grids = Grids(grids.binaries, grids.aabbs.to(kind))
    if crossings is not None:
        crossings = crossings._replace(t_sorted=crossings.t_sorted.to(kind))
    with dispatch.kernel_lock:
        found = dispatch.kernels("traverse", backend).traverse(*rays, grids, stride, mask, crossings)
    if near.dtype == kind:
        return found
    samples = found.samples
    samples = replace(samples, t_start=samples.t_start.to(near.dtype), t_end=samples.t_end.to(near.dtype))
    return found._replace(samples=samples, end=found.end.to(near.dtype))


def _check(
    origins: Tensor,
    directions: Tensor,
    bounds: tuple[Tensor, Tensor],
    grids: Grids,
    stride: Stride,
    mask: Tensor | None,
    crossings: Crossings | None,
) -> None:
    binaries, aabbs = grids
    if binaries.ndim != 4 or aabbs.shape != (len(binaries), 6):
        raise ConfigError(
            f"grids must be binaries [m, X, Y, Z] with aabbs [m, 6], got {list(binaries.shape)} and "
            f"{list(aabbs.shape)}."
        )
    if not 0 <= stride.cone_angle < math.inf or not math.isfinite(stride.step_size):
        raise ConfigError(
            f"`step_size` and `cone_angle` must be finite, and `cone_angle` 0 or more; got {stride.step_size} and "
            f"{stride.cone_angle}."
        )
    n, m = origins.shape[0] if origins.ndim else 0, len(binaries)
    t_sorted, t_indices, hits = crossings if crossings is not None else (None, None, None)
    for name, value, shape in (
        ("origins", origins, (n, 3)),
        ("directions", directions, (n, 3)),
        ("near", bounds[0], (n,)),
        ("far", bounds[1], (n,)),
        ("mask", mask, (n,)),
        ("t_sorted", t_sorted, (n, 2 * m)),
        ("t_indices", t_indices, (n, 2 * m)),
        ("hits", hits, (n, m)),
        ("aabbs", aabbs, (m, 6)),
    ):
        if value is not None and tuple(value.shape) != shape:
            raise ConfigError(f"`{name}` must have shape {list(shape)}, got {list(value.shape)}.")
        if value is not None and value.device != binaries.device:
            raise ConfigError(
                f"`{name}` is on {value.device} but the grids are on {binaries.device}. Move one of them."
            )
        if value is not None and name not in ("mask", "t_indices", "hits") and not value.is_floating_point():
            raise ConfigError(f"`{name}` must be floating point, got {value.dtype}.")
    if t_indices is not None and (t_indices.is_floating_point() or t_indices.is_complex()):
        raise ConfigError(f"`t_indices` must be integers, got {t_indices.dtype}.")
    if checks.readable(aabbs) and bool(aabbs.isinf().any()):
        raise ConfigError("`aabbs` must not be infinite: the cells of an infinite box have no size.")

"""`nerfacc.pdf`: importance sampling and search on batched and flattened rays."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.compat.nerfacc.data_specs import RayIntervals, RaySamples
from raymine.compat.nerfacc.pack import _pack_in
from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.toolkit import importance
from raymine.toolkit.pack import Pack, pack_counts, pack_ids


def searchsorted(
    sorted_sequence: RayIntervals | RaySamples, values: RayIntervals | RaySamples
) -> tuple[Tensor, Tensor]:
    """ids_left, ids_right: int64 in the shape of `values.vals`, with sorted[left] <= value < sorted[right].

    Batched values get indices within their ray; flattened values get indices into the flattened sequence. Values out of
    range get indices at the end of the range. If a ray of the sequence is empty, both are -1. Not differentiable.
    """
    if sorted_sequence.vals.ndim > 1 and values.vals.ndim > 1:
        found = importance.searchsorted(sorted_sequence.vals, values.vals)
        return found.left, found.right
    n_rays = _n_rays(sorted_sequence, values)
    key, query = _pack_of(sorted_sequence, n_rays), _pack_of(values, n_rays)
    left, right = importance.searchsorted(sorted_sequence.vals.flatten(), values.vals.flatten(), (key, query))
    if values.vals.ndim == 1:
        return left, right
    base, shape = key.first[query.ray_id()], values.vals.shape
    none = left < 0
    return (torch.where(none, -1, left - base).reshape(shape), torch.where(none, -1, right - base).reshape(shape))


def importance_sampling(
    intervals: RayIntervals,
    cdfs: Tensor,
    n_intervals_per_ray: Tensor | int,
    stratified: bool = False,
) -> tuple[RayIntervals, RaySamples]:
    """Resample intervals by the CDF at their edges. Not differentiable.

    cdfs: in the shape of `intervals.vals`. n_intervals_per_ray: an int gives batched intervals (n_rays, n + 1) and
    samples (n_rays, n); a tensor (n_rays,) gives flattened ones with `packed_info`, `ray_indices` and, for intervals,
    `is_left` and `is_right`. stratified: draw one offset per ray from torch's generator.

    Differences from nerfacc: if a CDF does not rise or is not finite, samples are evenly spaced along the ray; nerfacc
    puts all of them in the middle of the last interval, or returns NaN. A single interval covers the whole ray; nerfacc
    reads beyond its arrays.
    """
    vals = intervals.vals
    checks.alike(intervals=vals, cdfs=cdfs)
    if isinstance(n_intervals_per_ray, int):
        pack = _pack_of(intervals, _n_rays(intervals)) if vals.ndim == 1 else None
        got = importance.importance_samples(vals, cdfs, n_intervals_per_ray, pack=pack, stratified=stratified)
        return RayIntervals(vals=got.edges), RaySamples(vals=got.samples)
    counts = n_intervals_per_ray.flatten()
    pack = _pack_of(intervals, len(counts))
    got = importance.importance_samples(vals.flatten(), cdfs.flatten(), counts, pack=pack, stratified=stratified)
    assert got.edge_pack is not None
    assert got.sample_pack is not None
    ray = got.edge_pack.ray_id()
    rank = torch.arange(len(ray), device=ray.device) - got.edge_pack.first[ray]
    return (
        RayIntervals(
            vals=got.edges,
            packed_info=torch.stack(got.edge_pack, -1),
            ray_indices=ray,
            is_left=rank < got.edge_pack.count[ray] - 1,
            is_right=rank > 0,
        ),
        RaySamples(
            vals=got.samples,
            packed_info=torch.stack(got.sample_pack, -1),
            ray_indices=got.sample_pack.ray_id(),
        ),
    )


@torch.no_grad()
def _sample_from_weighted(
    bins: Tensor,
    weights: Tensor,
    num_samples: int,
    stratified: bool = False,
    vmin: float | Tensor = -torch.inf,
    vmax: float | Tensor = torch.inf,
) -> tuple[Tensor, Tensor]:
    """Resample bins (..., n + 1) by weights (..., n): edges (..., num_samples + 1) and samples (..., num_samples).

    The outermost edges are clamped to vmin .. vmax, numbers or tensors (...). Not differentiable.
    """
    if weights.ndim < 1 or bins.shape != (*weights.shape[:-1], weights.shape[-1] + 1):
        raise ConfigError(
            f"`bins` must have one edge more than `weights`, got {list(bins.shape)} and {list(weights.shape)}."
        )
    if num_samples < 1:
        raise ConfigError(f"`num_samples` must be at least 1, got {num_samples}.")
    inner = weights.cumsum(-1) / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    cdfs = torch.cat((torch.zeros_like(bins[..., :1]), inner[..., :-1], torch.ones_like(bins[..., :1])), -1)
    offset = torch.rand_like(bins[..., :1]) if stratified else 0.5
    steps = torch.arange(num_samples, device=bins.device, dtype=bins.dtype)
    samples = importance.inverse_cdf(bins, cdfs, ((steps + offset) / num_samples).expand(*bins.shape[:-1], -1))
    low, high = (torch.as_tensor(v, dtype=bins.dtype, device=bins.device) for v in (vmin, vmax))
    rays = bins.shape[:-1]
    return importance.edges_between(samples, low.expand(rays), high.expand(rays)), samples


def _n_rays(*specs: RayIntervals | RaySamples) -> int:
    """The number of rays, from the first argument that has it. Ray indices alone do not show empty rays at the end."""
    for spec in specs:
        if spec.vals.ndim > 1:
            return spec.vals.shape[:-1].numel()
        if spec.packed_info is not None:
            return _pack_in(spec.packed_info).n_rays
    return max(
        int(spec.ray_indices.max()) + 1 if spec.ray_indices is not None and len(spec.ray_indices) else 0
        for spec in specs
    )


def _pack_of(spec: RayIntervals | RaySamples, n_rays: int) -> Pack:
    if spec.vals.ndim > 1:
        return pack_counts(torch.full((spec.vals.shape[:-1].numel(),), spec.vals.shape[-1], device=spec.vals.device))
    if spec.packed_info is not None:
        return _pack_in(spec.packed_info)
    if spec.ray_indices is not None:
        return pack_ids(spec.ray_indices, n_rays)
    raise ConfigError("flattened `vals` need `packed_info` or `ray_indices` to say which ray each value belongs to.")

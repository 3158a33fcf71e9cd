"""Importance sampling along rays: inverse-CDF sampling of batched and packed intervals.

A ray has edges t_0 <= .. <= t_n and a CDF c_0 <= .. <= c_n at them, linear in between. The CDF need not go from 0 to 1;
only its differences matter. Resampling to m intervals finds the points where the CDF takes the equally spaced values

    u_k = c_0 + (k + o) (c_n - c_0) / m,   k = 0 .. m - 1       o = 1/2, or one random offset in 0..1 per ray

and puts the new edges half-way between neighbouring points. Batched rays are [..., n + 1]. Packed rays are flat arrays
(`raymine.toolkit.pack`), and their packs count edges. Nothing here is differentiable.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.kernels import inverse_cdf as unchecked
from raymine.kernels.resample.op import resample
from raymine.toolkit.pack import Pack, pack_counts

MOST = 2**31 - 1
"""Most samples of a call."""


class Neighbours(NamedTuple):
    """left, right: int64 indices in the shape of the values, with sorted[left] <= value < sorted[right]."""

    left: Tensor
    right: Tensor


class Resampled(NamedTuple):
    """New intervals: their edges, and the samples around which they were built.

    Batched: edges [..., m + 1], samples [..., m], no packs. Packed: flat arrays with a pack for each. A ray with m > 0
    samples has m + 1 edges; a ray without samples has no edges.
    """

    edges: Tensor
    samples: Tensor
    edge_pack: Pack | None = None
    sample_pack: Pack | None = None


@torch.no_grad()
def searchsorted(sorted: Tensor, values: Tensor, packs: tuple[Pack, Pack] | None = None) -> Neighbours:
    """For each value, the two neighbouring entries of `sorted`, on the same ray, between which it lies.

    Batched: sorted [..., n] and values [..., m] give indices [..., m] into the last axis. Packed: sorted [S] and
    values [V] with their two packs give indices [V] into `sorted`. `sorted` must ascend along each ray. For a value
    below the first entry, both neighbours are the first entry; for one above the last entry, they are the last two
    entries. NaN counts as larger than everything. If the ray has no entries, both indices are -1. Not differentiable.
    """
    checks.numeric(sorted=sorted, values=values)
    dtype = torch.promote_types(sorted.dtype, values.dtype)
    sorted, values = sorted.to(dtype), values.to(dtype)
    if packs is not None:
        return _searchsorted_packed(sorted, values, *packs)
    if not 1 <= sorted.ndim == values.ndim or sorted.shape[:-1] != values.shape[:-1]:
        raise ConfigError(
            f"`sorted` and `values` must agree in all but the last axis, got {list(sorted.shape)} and "
            f"{list(values.shape)}. Give `packs` for rays of different lengths."
        )
    return Neighbours(*unchecked.neighbours(sorted, values))


@torch.no_grad()
def inverse_cdf(edges: Tensor, cdfs: Tensor, u: Tensor, packs: tuple[Pack, Pack] | None = None) -> Tensor:
    """The distance at which the CDF of a ray reaches u, in the shape of u.

    Batched: edges, cdfs [..., n + 1], u [..., m]. Packed: edges, cdfs [S], u [V], and the packs of edges and of u.
    If the CDF is constant at u, the result is the far end of the constant piece, or its middle if the ray ends with it.
    u below or above the range of the CDF gives the first or the last edge. NaN gives NaN, and a ray without edges
    gives 0. Not differentiable.
    """
    checks.alike(edges=edges, cdfs=cdfs)
    checks.reals(edges=edges, u=u)
    if packs is None and u.shape[:-1] == edges.shape[:-1] and not edges.shape[-1]:
        return torch.zeros_like(u)
    left, right = searchsorted(cdfs, u, packs)
    if packs is None:
        c0, c1 = cdfs.gather(-1, left), cdfs.gather(-1, right)
        t0, t1 = edges.gather(-1, left), edges.gather(-1, right)
    else:
        edges, cdfs = _padded(edges), _padded(cdfs)
        c0, c1, t0, t1 = cdfs[left], cdfs[right], edges[left], edges[right]
    return unchecked.interpolate(u, c0, c1, t0, t1)


@torch.no_grad()
def importance_samples(
    edges: Tensor,
    cdfs: Tensor,
    n: int | Tensor,
    *,
    pack: Pack | None = None,
    stratified: bool | Tensor = False,
) -> Resampled:
    """Resample every ray to n intervals of equal mass.

    edges, cdfs: [..., K + 1] batched, or [S] with the `pack` of edges; ascending along each ray.
    n: an int for a batched result ([..., n + 1] edges; [R, n + 1] from packed rays), or integers [R] for a packed
        result.
    stratified: if True, shift the samples of each ray by a random fraction of their spacing from torch's generator. A
        tensor, one number in 0..1 per ray, is used as these fractions. If False, the fraction is 1/2.

    If the CDF of a ray does not rise or is not finite, its samples are evenly spaced. A ray without edges gets no
    samples in a packed result, and intervals of length 0 at distance 0 in a batched one. With n = 1 the interval is the
    whole ray. Not differentiable.
    """
    checks.alike(edges=edges, cdfs=cdfs)
    dtype = edges.dtype
    work = torch.promote_types(torch.promote_types(dtype, cdfs.dtype), torch.float32)
    edges, cdfs = edges.to(work), cdfs.to(work)
    if isinstance(n, int):
        if n < 1:
            raise ConfigError(f"`n` must be at least 1, got {n}. Give a tensor of counts for rays without samples.")
        checks.whole(high=MOST // max(edges.shape[:-1].numel(), 1), n=n)
        if pack is None:
            result = Resampled(*resample(edges, cdfs, _offsets(stratified, edges.shape[:-1], edges), n))
        else:
            pack, _ = _check_pack("edges", edges, pack)
            counts = torch.full_like(pack.count, n)
            packed = _packed(edges, _informative_packed(edges, cdfs, pack), pack, counts, stratified)
            result = Resampled(packed.edges.reshape(-1, n + 1), packed.samples.reshape(-1, n))
    else:
        if pack is None:
            if edges.ndim != 2:
                raise ConfigError(
                    f"counts per ray need edges of shape [R, K + 1] or a `pack`, got {list(edges.shape)}."
                )
            pack = pack_counts(torch.full((edges.shape[0],), edges.shape[1], device=edges.device))
            edges, cdfs = edges.reshape(-1), cdfs.reshape(-1)
        pack, _ = _check_pack("edges", edges, pack)
        n = checks.within("n", n, MOST, edges.device, pack.n_rays)
        if checks.readable(n) and int(n.sum()) >= MOST:
            raise ConfigError(f"`n` must have a sum below 2^31 - 1, got {int(n.sum())}.")
        counts = torch.where(pack.count > 0, n, 0)
        result = _packed(edges, _informative_packed(edges, cdfs, pack), pack, counts, stratified)
    return result._replace(edges=result.edges.to(dtype), samples=result.samples.to(dtype))


@torch.no_grad()
def edges_between(samples: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Samples [..., m] in ascending order -> edges [..., m + 1] half-way between them. Not differentiable.

    low, high [...]: the ends of the ray. The first edge mirrors the second about the first sample, and the last edge
    mirrors the one before it about the last sample; both are clamped to low .. high. The interval of a single sample is
    low .. high.
    """
    checks.reals(samples=samples, low=low, high=high)
    if not samples.ndim or not low.shape == high.shape == samples.shape[:-1]:
        raise ConfigError(
            f"`low` and `high` must have one number for each ray of `samples`, {list(samples.shape)}; got "
            f"{list(low.shape)} and {list(high.shape)}."
        )
    return unchecked.edges_between(samples, low, high)


def _packed(edges: Tensor, cdfs: Tensor, pack: Pack, counts: Tensor, stratified: bool | Tensor) -> Resampled:
    """As `resample`, with counts [R] samples per ray."""
    out = pack_counts(counts)
    ray = out.ray_id()
    rank = torch.arange(len(ray), device=ray.device) - out.first[ray]
    first, last = _ends(pack)
    start, end = _padded(cdfs)[first], _padded(cdfs)[last]
    offset = _offsets(stratified, (pack.n_rays,), edges)
    step = (end - start) / counts.clamp_min(1)
    samples = inverse_cdf(edges, cdfs, start[ray] + (rank + offset[ray]) * step[ray], (pack, out))
    edge_pack = pack_counts(torch.where(counts > 0, counts + 1, 0))
    low, high = _padded(edges)[first], _padded(edges)[last]

    # Every sample defines the edge on its left. The last sample of a ray also defines the edge on its right.
    before, behind = torch.roll(samples, 1), torch.roll(samples, -1)
    alone = counts[ray] == 1
    opening = torch.where(alone, low[ray], torch.maximum(samples - (behind - samples) * 0.5, low[ray]))
    closing = torch.where(alone, high[ray], torch.minimum(samples + (samples - before) * 0.5, high[ray]))
    result = edges.new_empty(len(samples) + int((counts > 0).sum()))
    at = edge_pack.first[ray] + rank
    result[at] = torch.where(rank == 0, opening, (samples + before) * 0.5)
    final = rank == counts[ray] - 1
    result[at[final] + 1] = closing[final]
    return Resampled(result, samples, edge_pack, out)


def _searchsorted_packed(sorted: Tensor, values: Tensor, sorted_pack: Pack, values_pack: Pack) -> Neighbours:
    sorted_pack, longest = _check_pack("sorted", sorted, sorted_pack)
    _check_flat("values", values)
    values_pack = Pack(*checks.pack(*values_pack, len(values), values.device))
    if sorted_pack.n_rays != values_pack.n_rays:
        raise ConfigError(f"both packs must have the same rays, got {sorted_pack.n_rays} and {values_pack.n_rays}.")
    ray = values_pack.ray_id(len(values))
    if not longest or not len(values):
        return Neighbours(torch.full_like(ray, -1), torch.full_like(ray, -1))
    first, last = _ends(sorted_pack)
    first, last = first[ray], last[ray]
    low, high = first, last
    # Binary search of all values at once; the longest ray determines the number of rounds.
    for _ in range((longest - 1).bit_length()):
        middle = (low + high) >> 1
        up = (low < high) & ~(sorted[middle] > values)
        low, high = torch.where(up, middle + 1, low), torch.where(up, high, torch.maximum(low, middle))
    return Neighbours(torch.maximum(low - 1, first), low)


def _informative_packed(edges: Tensor, cdfs: Tensor, pack: Pack) -> Tensor:
    first, last = _ends(pack)
    padded, ray = _padded(cdfs), pack.ray_id()
    rises = padded[last] - padded[first] > torch.finfo(cdfs.dtype).tiny
    wrong = torch.zeros_like(pack.count).index_add_(0, ray, (~torch.isfinite(cdfs)).long())
    return torch.where((rises & (wrong == 0))[ray], cdfs, edges)


def _offsets(stratified: bool | Tensor, rays: tuple[int, ...], like: Tensor) -> Tensor:
    """Per ray, the offset o of the module docstring."""
    if isinstance(stratified, Tensor):
        checks.reals(edges=like, stratified=stratified)
        if tuple(stratified.shape) != tuple(rays):
            raise ConfigError(f"`stratified` must have shape {list(rays)}, one per ray, got {list(stratified.shape)}.")
        return stratified.to(like.dtype)
    if stratified:
        return torch.rand(rays, device=like.device, dtype=like.dtype)
    return torch.full(rays, 0.5, device=like.device, dtype=like.dtype)


def _ends(pack: Pack) -> tuple[Tensor, Tensor]:
    """[R] indices of the first and the last entry of each ray, -1 where there is none."""
    some = pack.count > 0
    return torch.where(some, pack.first, -1), torch.where(some, pack.first + pack.count - 1, -1)


def _padded(flat: Tensor) -> Tensor:
    """`flat` with a zero appended, so that index -1 reads 0."""
    return torch.cat((flat, flat.new_zeros(1)))


def _check_pack(name: str, flat: Tensor, pack: Pack) -> tuple[Pack, int]:
    """The pack, checked against flat [S], and the number of entries of its longest ray. Waits for the device once."""
    _check_flat(name, flat)
    pack = Pack(*checks.pack(*pack, len(flat), flat.device))
    if not pack.n_rays:
        return pack, 0
    longest, total = torch.stack((pack.count.max(), pack.count.sum())).tolist()
    if total != flat.shape[0]:
        raise ConfigError(f"the pack of `{name}` counts {total} entries, but there are {flat.shape[0]}.")
    return pack, longest


def _check_flat(name: str, flat: Tensor) -> None:
    if flat.ndim != 1:
        raise ConfigError(f"packed rays lie in one flat array, got `{name}` of shape {list(flat.shape)}.")

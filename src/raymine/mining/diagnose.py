"""Diagnostics of mining in one step, as plain numbers for logs and plots. Symbols as in `raymine.mining.draw`.

Every function reads results back from the device, so do not call them in every step. They take plain tensors: G from
`draw.norms`, rendering weights from any compositing, and the `Selection` of the miner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from raymine.contracts import Selection
from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.kernels.packed import pack_ids

MATTERS = 1e-3
"""Smallest rendering weight of a surface sample: about a quarter of a level of an 8-bit picture."""

BEHIND = 0.1
"""A sample with less transmittance than this lies behind a surface."""

MOST_BINS = 1 << 16
"""Most bins of a histogram."""

HARD = 0.1
"""The share of rays, the most important ones, to which `Diagnosis.hard_rays` refers."""


class SampleClass(IntEnum):
    """Where a sample lies on its ray: in empty space, on a surface or behind one."""

    EMPTY = 0
    SURFACE = 1
    OCCLUDED = 2


@dataclass(frozen=True)
class Histogram:
    """Counts of n bins between n + 1 edges. A bin includes its lower edge and excludes its upper edge.

    below: values under the first edge, including 0. above: values from the last edge on, including infinity and NaN.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    below: int
    above: int


@dataclass(frozen=True)
class Picked:
    """The number of samples of a class, and how many of them were chosen."""

    all: int
    chosen: int


@dataclass(frozen=True)
class Diagnosis:
    """Diagnostics of one step; `dataclasses.asdict` converts it for JSON.

    samples: B. chosen: number of distinct samples trained on. share_samples: chosen / samples.
    share_gradient: sum of G over the chosen samples / sum of G over all.
    tau: how concentrated the gradients of this step were. skewness: of G. effective: see `effective_size`.
    hard_rays: share of the sum of G on the tenth of the rays with the largest sums (0.1 when all rays are equal).
    empty, surface, occluded: samples of each class, see `classify`.
    pixel_loss, weights: histograms of the loss of the rays and of the rendering weights of the samples.
    """

    samples: int
    chosen: int
    share_samples: float
    share_gradient: float
    tau: float
    skewness: float
    effective: float
    hard_rays: float
    empty: Picked
    surface: Picked
    occluded: Picked
    pixel_loss: Histogram
    weights: Histogram


def diagnose(
    size: Tensor, weights: Tensor, transmittance: Tensor, ray_id: Tensor, pixel_loss: Tensor, selection: Selection
) -> Diagnosis:
    """All diagnostics of one step. size (G), weights, transmittance, ray_id [B]; pixel_loss [R]."""
    checks.columns(size=size, weights=weights, transmittance=transmittance)
    checks.columns(pixel_loss=pixel_loss)
    n = len(size)
    size = torch.where(torch.isfinite(size), size, torch.zeros_like(size))
    chosen = chosen_mask(selection, n)
    taken = int(chosen.sum())
    kinds = count_classes(classify(weights, transmittance), chosen)
    return Diagnosis(
        samples=n,
        chosen=taken,
        share_samples=taken / n if n else 0.0,
        share_gradient=share_kept(size, chosen),
        tau=float(selection.tau),
        skewness=skewness(size),
        effective=effective_size(size),
        hard_rays=top_share(ray_importance(size, ray_id, len(pixel_loss)), HARD),
        empty=kinds[SampleClass.EMPTY],
        surface=kinds[SampleClass.SURFACE],
        occluded=kinds[SampleClass.OCCLUDED],
        pixel_loss=histogram(pixel_loss, 1e-8, 1e1, 18),
        weights=histogram(weights, 1e-6, 1.0, 12),
    )


def chosen_mask(selection: Selection, n: int) -> Tensor:
    """[n] bool: the samples that were chosen. Entries of weight 0 are unused."""
    checks.whole(n=n)
    checks.columns(weight=selection.weight)
    index = checks.integers("index", selection.index, selection.weight.device, len(selection.weight))
    index = checks.within("index", index[selection.weight > 0], n, index.device)
    mask = torch.zeros(n, dtype=torch.bool, device=index.device)
    mask[index] = True
    return mask


def share_kept(size: Tensor, chosen: Tensor) -> float:
    """Sum of G over the chosen samples / sum of G over all; 0 if every G is 0. size: G [B]; chosen [B] bool."""
    checks.columns(size=size)
    checks.present(size=size)
    checks.mask("chosen", chosen, len(size), size.device)
    total = float(size.double().sum())
    return float(size.double()[chosen].sum()) / total if total > 0 else 0.0


def skewness(size: Tensor) -> float:
    """Third central moment / standard deviation^3 of G [B]: 0 if symmetric or constant, large if a few dominate."""
    checks.columns(size=size)
    checks.present(size=size)
    if not len(size):
        return 0.0
    values = size.double()
    centred = values - values.mean()
    spread = float(centred.square().mean().sqrt())
    # The spread of a constant G is rounding error, and its skewness is meaningless.
    if spread <= 1e-12 * float(values.abs().max()):
        return 0.0
    return float((centred / spread).pow(3).mean())


def effective_size(size: Tensor) -> float:
    """Effective sample size (sum G)^2 / sum G^2 = B / tau^2 of G [B]; 0 if every G is 0."""
    checks.columns(size=size)
    checks.present(size=size)
    squares = float(size.double().square().sum())
    return float(size.double().sum()) ** 2 / squares if squares > 0 else 0.0


def histogram(values: Tensor, low: float, high: float, bins: int) -> Histogram:
    """Histogram of `values` (any shape, >= 0) over bins from `low` to `high` of equal width in the logarithm."""
    checks.numeric(values=values)
    checks.present(values=values)
    if not (0 < low < high < math.inf and 1 <= bins <= MOST_BINS):
        raise ConfigError(f"a histogram needs 0 < low < high and bins in 1 .. 65536; got {low}, {high} and {bins}.")
    edges = (*(low * (high / low) ** (i / bins) for i in range(bins)), high)
    flat = values.detach().double().reshape(-1).nan_to_num(nan=math.inf, posinf=math.inf)
    place = torch.bucketize(flat, torch.tensor(edges, dtype=torch.float64, device=flat.device), right=True)
    below, *counts, above = torch.bincount(place, minlength=bins + 2).tolist()
    return Histogram(edges, tuple(counts), below, above)


def transmittance_before(weights: Tensor, ray_id: Tensor, n_rays: int) -> Tensor:
    """Transmittance [B] before each packed sample: T_i = 1 - sum of w_j over the samples j < i of the same ray.

    weights [B], ray_id [B]. Behind an early stop the weights are 0, so T is constant there.
    """
    checks.columns(weights=weights)
    ray_id = checks.integers("ray_id", ray_id, weights.device, len(weights))
    pack_ids(ray_id, n_rays)  # refuses rays that are not in order
    running = weights.double().cumsum(0)
    of_ray = torch.zeros(n_rays, dtype=torch.float64, device=weights.device).index_add(0, ray_id, weights.double())
    start = of_ray.cumsum(0) - of_ray
    before = running - weights.double() - start[ray_id]
    return (1.0 - before).clamp(0.0, 1.0).to(weights.dtype)


def classify(weights: Tensor, transmittance: Tensor, matters: float = MATTERS, behind: float = BEHIND) -> Tensor:
    """The `SampleClass` of each sample, [B] int64, from rendering weights w [B] and transmittance T [B] before it.

    Surface if w >= matters. Otherwise occluded if T < behind, else empty: in front of any surface, or on a ray that
    hits none.
    """
    checks.columns(weights=weights, transmittance=transmittance)
    checks.numbers(matters=matters, behind=behind)
    kind = torch.where(transmittance < behind, int(SampleClass.OCCLUDED), int(SampleClass.EMPTY))
    return torch.where(weights >= matters, int(SampleClass.SURFACE), kind)


def count_classes(kind: Tensor, chosen: Tensor) -> dict[SampleClass, Picked]:
    """The number of samples and of chosen samples of each class. kind [B] from `classify`, chosen [B] bool."""
    checks.mask("chosen", chosen, len(kind) if kind.ndim else 1, kind.device)
    kind = checks.within("kind", kind, len(SampleClass), kind.device)
    checks.present(kind=kind)
    every = torch.bincount(kind, minlength=len(SampleClass)).tolist()
    taken = torch.bincount(kind[chosen], minlength=len(SampleClass)).tolist()
    return {one: Picked(every[one], taken[one]) for one in SampleClass}


def ray_importance(size: Tensor, ray_id: Tensor, n_rays: int) -> Tensor:
    """[R] sum of G over the samples of each ray. For all rays of an image this is a map of hard pixels."""
    checks.columns(size=size)
    checks.whole(n_rays=n_rays)
    ray_id = checks.within("ray_id", ray_id, n_rays, size.device, len(size))
    return torch.zeros(n_rays, dtype=size.dtype, device=size.device).index_add(0, ray_id, size)


def top_share(importance: Tensor, share: float) -> float:
    """The share of the sum of `importance` [R] that its largest entries hold: `share` of all entries, at least one."""
    checks.columns(importance=importance)
    checks.present(importance=importance)
    if not 0 <= share <= 1:
        raise ConfigError(f"`share` must be in 0 .. 1, got {share}.")
    total = float(importance.double().sum())
    if not total > 0:
        return 0.0
    count = max(1, round(share * len(importance)))
    return float(importance.double().topk(count).values.sum()) / total

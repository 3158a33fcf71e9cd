"""What mining did in a step, in numbers that can be read, logged and plotted. Symbols as in `raymine.mining.draw`.

Every function reads numbers back from the device, so call them now and then, not in every step. They take plain
tensors: G from `draw.norms`, weights from any compositing, the `Selection` that the miner made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from raymine.contracts import Selection
from raymine.errors import ConfigError

MATTERS = 1e-3
"""Rendering weight from which a sample belongs to a surface: about a quarter of a level of an 8-bit picture."""

BEHIND = 0.1
"""Transmittance below which a ray has passed the surface that stops it."""

HARD = 0.1
"""The share of rays, by importance, that `Diagnosis.hard_rays` speaks of."""


class SampleClass(IntEnum):
    """What a sample is to its ray."""

    EMPTY = 0
    SURFACE = 1
    OCCLUDED = 2


@dataclass(frozen=True)
class Histogram:
    """`counts` of n bins between n + 1 `edges`, each bin closed below and open above.

    below: values under the first edge, 0 among them; above: from the last edge on, infinity and NaN among them.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    below: int
    above: int


@dataclass(frozen=True)
class Picked:
    """How many samples of a class there were, and how many of them were chosen."""

    all: int
    chosen: int


@dataclass(frozen=True)
class Diagnosis:
    """One step of mining; `dataclasses.asdict` makes it ready for JSON.

    samples, chosen: B, and the distinct samples trained on; share_samples is their ratio.
    share_gradient: sum of G over the chosen / sum of G over all.
    tau: how concentrated the gradients of this step were; skewness: of G; effective: see `effective_size`.
    hard_rays: share of the sum of G that lies on the hardest tenth of the rays (0.1 when all are equally hard).
    empty, surface, occluded: which samples along the rays were picked, see `classify`.
    pixel_loss, weights: how the loss of the rays and the rendering weights of the samples are spread.
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
    """All of the below for one step: size G, weights, transmittance, ray_id [B]; pixel_loss [R]."""
    n = len(size)
    for name, value in (("weights", weights), ("transmittance", transmittance), ("ray_id", ray_id)):
        if tuple(value.shape) != (n,):
            raise ConfigError(f"`{name}` must have shape [{n}], one value per G; got {list(value.shape)}.")
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
    """[n] bool: the samples that were chosen; places of weight 0 choose nothing."""
    mask = torch.zeros(n, dtype=torch.bool, device=selection.index.device)
    mask[selection.index[selection.weight > 0]] = True
    return mask


def share_kept(size: Tensor, chosen: Tensor) -> float:
    """Sum of G over the chosen / sum of G over all; size G [B], chosen [B] bool; 0 where every G is 0."""
    total = float(size.double().sum())
    return float(size.double()[chosen].sum()) / total if total > 0 else 0.0


def skewness(size: Tensor) -> float:
    """Third central moment / standard deviation^3 of G [B]: 0 when symmetric or constant, large when few stand out."""
    if not len(size):
        return 0.0
    values = size.double()
    centred = values - values.mean()
    spread = float(centred.square().mean().sqrt())
    # A constant G leaves a spread of rounding errors, whose skewness would mean nothing.
    if spread <= 1e-12 * float(values.abs().max()):
        return 0.0
    return float((centred / spread).pow(3).mean())


def effective_size(size: Tensor) -> float:
    """(sum G)^2 / sum G^2 of [B]: as how many equal samples they count. B / tau^2; 0 where every G is 0."""
    squares = float(size.double().square().sum())
    return float(size.double().sum()) ** 2 / squares if squares > 0 else 0.0


def histogram(values: Tensor, low: float, high: float, bins: int) -> Histogram:
    """How `values` (any shape, >= 0) are spread over bins from `low` to `high`, equally wide in the logarithm."""
    if not (0 < low < high and bins >= 1):
        raise ConfigError(f"a histogram needs 0 < low < high and bins >= 1; got {low}, {high} and {bins}.")
    edges = (*(low * (high / low) ** (i / bins) for i in range(bins)), high)
    flat = values.detach().double().reshape(-1).nan_to_num(nan=math.inf, posinf=math.inf)
    place = torch.bucketize(flat, torch.tensor(edges, dtype=torch.float64, device=flat.device), right=True)
    below, *counts, above = torch.bincount(place, minlength=bins + 2).tolist()
    return Histogram(edges, tuple(counts), below, above)


def transmittance_before(weights: Tensor, ray_id: Tensor, n_rays: int) -> Tensor:
    """[B] T_i = 1 - sum of w_j over j < i of the same ray, for packed samples: ray by ray, ordered by distance.

    Behind an early stop the weights are 0, so T stays as it was there.
    """
    running = weights.double().cumsum(0)
    of_ray = torch.zeros(n_rays, dtype=torch.float64, device=weights.device).index_add(0, ray_id, weights.double())
    start = of_ray.cumsum(0) - of_ray
    before = running - weights.double() - start[ray_id]
    return (1.0 - before).clamp(0.0, 1.0).to(weights.dtype)


def classify(weights: Tensor, transmittance: Tensor, matters: float = MATTERS, behind: float = BEHIND) -> Tensor:
    """[B] int64 of `SampleClass`, from rendering weights w and the transmittance T before each sample.

    surface where w >= matters; of the others, occluded where T < behind, else empty (in front of any surface, or on a
    ray that meets none).
    """
    kind = torch.where(transmittance < behind, int(SampleClass.OCCLUDED), int(SampleClass.EMPTY))
    return torch.where(weights >= matters, int(SampleClass.SURFACE), kind)


def count_classes(kind: Tensor, chosen: Tensor) -> dict[SampleClass, Picked]:
    """Samples of each class, and chosen ones; kind [B] from `classify`, chosen [B] bool."""
    every = torch.bincount(kind, minlength=len(SampleClass)).tolist()
    taken = torch.bincount(kind[chosen], minlength=len(SampleClass)).tolist()
    return {one: Picked(every[one], taken[one]) for one in SampleClass}


def ray_importance(size: Tensor, ray_id: Tensor, n_rays: int) -> Tensor:
    """[R] sum of G over the samples of each ray; for the rays of an image, a picture of what is hard in it."""
    return torch.zeros(n_rays, dtype=size.dtype, device=size.device).index_add(0, ray_id, size)


def top_share(importance: Tensor, share: float) -> float:
    """Part of the sum of `importance` [R] that the largest `share` of its entries hold, at least one entry."""
    total = float(importance.double().sum())
    if not total > 0:
        return 0.0
    count = max(1, round(share * len(importance)))
    return float(importance.double().topk(count).values.sum()) / total

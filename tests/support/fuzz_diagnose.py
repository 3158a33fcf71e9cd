"""Fuzz cases of the diagnostics of `raymine.mining`."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.contracts import Selection
from raymine.mining import diagnose
from support.fuzz import Args, Case, Size
from support.fuzz_arguments import rand
from support.fuzz_expect import Array, alike, careful, equals, flat, moderate, plain, require

TOOLS = "raymine.mining.diagnose"


def diagnose_args(rng: torch.Generator, size: Size) -> Args:
    ray = torch.randint(max(size.rays, 1), (size.samples,), generator=rng).sort().values
    many = (size.samples + 1) // 2
    return {
        "size": rand(rng, size.samples),
        "weights": rand(rng, size.samples) * 0.2,
        "transmittance": rand(rng, size.samples),
        "ray_id": ray,
        "pixel_loss": rand(rng, max(size.rays, 1)),
        "index": torch.randperm(size.samples, generator=rng)[:many],
        "weight": rand(rng, many),
    }


def run_diagnose(index: Tensor, weight: Tensor, **args: Tensor) -> Any:
    return diagnose.diagnose(**args, selection=Selection(index, weight, torch.tensor(2.0), torch.tensor(1.0)))


def mask_of(index: Array, weight: Array, n: int) -> Array:
    require(flat(index, "i").shape == flat(weight).shape and n >= 0, "selection")
    mask = np.zeros(n, dtype=bool)
    for i, w in zip(index, weight, strict=True):
        if w > 0:
            require(0 <= i < n, "index")
            mask[i] = True
    return mask


def kinds_of(weights: Array, transmittance: Array, matters: float = 1e-3, behind: float = 0.1) -> Array:
    alike(weights, transmittance)
    return np.where(weights >= matters, 1, np.where(transmittance < behind, 2, 0))


@careful
def diagnosed(args: Args, found: diagnose.Diagnosis) -> str:
    a = {name: plain(value) for name, value in args.items()}
    n = len(flat(a["size"]))
    require(
        flat(a["weights"]).shape == flat(a["transmittance"]).shape == flat(a["ray_id"], "i").shape == (n,), "shapes"
    )
    require(((a["ray_id"] >= 0) & (a["ray_id"] < len(flat(a["pixel_loss"])))).all(), "ray_id")
    chosen = mask_of(a["index"], a["weight"], n)
    kinds = kinds_of(a["weights"], a["transmittance"])
    classes = [(int((kinds == k).sum()), int((kinds[chosen] == k).sum())) for k in (0, 1, 2)]
    if (found.samples, found.chosen) != (n, int(chosen.sum())):
        return "the samples are counted wrongly"
    size = np.where(np.isfinite(a["size"]), a["size"], 0.0)
    kept = size[chosen].sum() / size.sum() if size.sum() > 0 else 0.0
    if moderate(args) and (size >= 0).all() and abs(found.share_gradient - kept) > 1e-4:
        return f"share_gradient is {found.share_gradient} instead of {kept}"
    ours = [(each.all, each.chosen) for each in (found.empty, found.surface, found.occluded)]
    return "" if ours == classes else f"classes {ours} instead of {classes}"


def skew(size: Array) -> float:
    if not len(flat(size)) or np.ptp(size) <= 1e-12 * np.abs(size).max():
        return 0.0
    centred = size - size.mean()
    return float(((centred / np.sqrt((centred**2).mean())) ** 3).mean())


def binned(values: Array, low: float, high: float, bins: int) -> Any:
    require(values.dtype.kind in "fi" and 0 < low < high < np.inf and 1 <= bins <= 1 << 16, "numbers")
    edges = [low * (high / low) ** (i / bins) for i in range(bins)] + [high]
    held = np.where(np.isnan(values), np.inf, values).reshape(-1)
    counts = [int(((held >= a) & (held < b)).sum()) for a, b in itertools.pairwise(edges)]
    return [*edges, *counts, int((held < low).sum()), int((held >= high).sum())]


def before(weights: Array, ray_id: Array, n_rays: int) -> Array:
    require(flat(ray_id, "i").shape == flat(weights).shape and ((ray_id >= 0) & (ray_id < n_rays)).all(), "ray_id")
    require((np.diff(ray_id) >= 0).all(), "packed")
    sums = [weights[:i][ray_id[:i] == ray_id[i]].sum() for i in range(len(weights))]
    return np.clip(1 - np.array(sums).reshape(weights.shape), 0.0, 1.0)


def importance_of(size: Array, ray_id: Array, n_rays: int) -> Array:
    require(flat(ray_id, "i").shape == flat(size).shape and ((ray_id >= 0) & (ray_id < n_rays)).all(), "ray_id")
    return np.array([size[ray_id == r].sum() for r in range(n_rays)]).reshape(n_rays)


def top(importance: Array, share: float) -> float:
    require(0 <= share <= 1, "share")
    total = flat(importance).sum()
    if not total > 0:
        return 0.0
    return float(np.sort(importance)[::-1][: max(1, round(share * len(importance)))].sum() / total)


def classes_of(kind: Array, chosen: Array) -> Any:
    require(flat(kind, "i").shape == flat(chosen, "b").shape and ((kind >= 0) & (kind < 3)).all(), "kind")
    return [[int((kind == k).sum()), int((kind[chosen] == k).sum())] for k in range(3)]


def rays_args(rng: torch.Generator, size: Size) -> Args:
    args = diagnose_args(rng, size)
    return {"weights": args["weights"], "ray_id": args["ray_id"], "n_rays": max(size.rays, 1)}


def sizes_args(rng: torch.Generator, size: Size) -> Args:
    return {"size": rand(rng, size.samples)}


CASES = [
    Case((f"{TOOLS}.diagnose",), diagnose_args, run_diagnose, holds=diagnosed),
    Case(
        (f"{TOOLS}.chosen_mask",),
        lambda rng, size: {
            **{k: v for k, v in diagnose_args(rng, size).items() if k in ("index", "weight")},
            "n": size.samples,
        },
        lambda index, weight, n: diagnose.chosen_mask(
            Selection(index, weight, torch.tensor(1.0), torch.tensor(1.0)), n
        ),
        holds=equals(mask_of),
    ),
    Case(
        (f"{TOOLS}.share_kept",),
        lambda rng, size: {**sizes_args(rng, size), "chosen": rand(rng, size.samples) > 0.5},
        diagnose.share_kept,
        holds=equals(
            lambda size, chosen: (
                require(flat(chosen, "b").shape == flat(size).shape, "shapes")
                or (size[chosen].sum() / size.sum() if size.sum() > 0 else 0.0)
            )
        ),
    ),
    Case((f"{TOOLS}.skewness",), sizes_args, diagnose.skewness, holds=equals(skew, close=1e-3)),
    Case(
        (f"{TOOLS}.effective_size",),
        sizes_args,
        diagnose.effective_size,
        holds=equals(lambda size: flat(size).sum() ** 2 / (size**2).sum() if (size**2).sum() > 0 else 0.0),
    ),
    Case(
        (f"{TOOLS}.histogram",),
        lambda rng, size: {"values": rand(rng, size.samples), "low": 0.01, "high": 0.9, "bins": 5},
        diagnose.histogram,
        holds=equals(binned),
    ),
    Case((f"{TOOLS}.transmittance_before",), rays_args, diagnose.transmittance_before, holds=equals(before)),
    Case(
        (f"{TOOLS}.classify",),
        lambda rng, size: {
            "weights": rand(rng, size.samples),
            "transmittance": rand(rng, size.samples),
            "matters": 0.5,
            "behind": 0.3,
        },
        diagnose.classify,
        holds=equals(kinds_of),
    ),
    Case(
        (f"{TOOLS}.count_classes",),
        lambda rng, size: {
            "kind": torch.randint(3, (size.samples,), generator=rng),
            "chosen": rand(rng, size.samples) > 0.5,
        },
        lambda kind, chosen: list(diagnose.count_classes(kind, chosen).values()),
        holds=equals(classes_of),
    ),
    Case(
        (f"{TOOLS}.ray_importance",),
        lambda rng, size: {
            "size": (args := rays_args(rng, size))["weights"],
            "ray_id": args["ray_id"],
            "n_rays": args["n_rays"],
        },
        diagnose.ray_importance,
        holds=equals(importance_of),
    ),
    Case(
        (f"{TOOLS}.top_share",),
        lambda rng, size: {"importance": rand(rng, size.rays), "share": 0.3},
        diagnose.top_share,
        holds=equals(top),
    ),
]

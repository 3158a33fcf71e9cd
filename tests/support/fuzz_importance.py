"""Fuzz cases of importance sampling in `raymine.toolkit`: searches in sorted rows, inverse CDFs and resampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.toolkit import importance
from raymine.toolkit.pack import Pack
from support.fuzz import Args, Case, Size
from support.fuzz_arguments import packed_rays, rand
from support.fuzz_expect import Array, alike, by_ray, careful, equals, moderate, plain, require

TOOLS = "raymine.toolkit"
EDGES, VALUES = 6, 4


def edges_args(rng: torch.Generator, size: Size) -> Args:
    """Batched edges and CDFs [R, n + 1]."""
    cdfs = rand(rng, size.rays, EDGES, low=0.05).cumsum(-1)
    return {
        "edges": rand(rng, size.rays, EDGES, low=0.05).cumsum(-1),
        "cdfs": cdfs / cdfs[:, -1:] if size.rays else cdfs,
    }


def packed_edges_args(rng: torch.Generator, size: Size) -> Args:
    """Packed edges and CDFs [S], ascending over all rays."""
    rising = [rand(rng, size.samples, low=0.05).cumsum(0) for _ in range(2)]
    return {"edges": rising[0], "cdfs": rising[1], **packed_rays(rng, size)}


def queries(rng: torch.Generator, size: Size, name: str, high: float) -> Args:
    """Packed values of the same rays, two for each, with a pack of their own."""
    count = torch.full((size.rays,), 2)
    own = {f"{name}_first": count.cumsum(0) - count, f"{name}_count": count}
    return {name: rand(rng, 2 * size.rays, high=high), **own}


def rays_of(first: Array, count: Array, flat: Array) -> list[slice]:
    """The samples of each ray; an exception unless they follow one another and are all."""
    require(flat.ndim == 1, "packed rays are flat")
    by_ray(lambda column: column, first, count, flat.astype(np.float64))
    return [slice(f, f + c) if c else slice(0, 0) for f, c in zip(first, count, strict=True)]


# ---- searching


def neighbours(row: Array, values: Array) -> tuple[Array, Array]:
    """Indices into one sorted row."""
    left, right = (np.full(values.shape, -1, dtype=np.int64) for _ in range(2))
    if not len(row):
        return left, right
    for i, value in enumerate(values):
        above = [k for k in range(len(row)) if row[k] > value]
        right[i] = above[0] if above else len(row) - 1
        left[i] = max(right[i] - 1, 0)
    return left, right


def searched(sorted: Array, values: Array) -> tuple[Array, Array]:
    require(sorted.ndim >= 1 and sorted.shape[:-1] == values.shape[:-1] and values.ndim == sorted.ndim, "shapes")
    require(sorted.dtype.kind in "fi" and values.dtype.kind in "fi", "types")
    require(sorted.ndim == 1 or (np.diff(sorted) >= 0).all(), "must ascend")
    rows, asked = sorted.reshape(-1, sorted.shape[-1]), values.reshape(-1, values.shape[-1])
    found = [neighbours(row, ask) for row, ask in zip(rows, asked, strict=True)]
    return tuple(np.array([each[k] for each in found], dtype=np.int64).reshape(values.shape) for k in (0, 1))


def searched_packed(
    sorted: Array, first: Array, count: Array, values: Array, values_first: Array, values_count: Array
) -> tuple[Array, Array]:
    require(len(first) == len(values_first), "rays")
    require(sorted.dtype.kind in "fi" and values.dtype.kind in "fi", "types")
    left, right = (np.full(values.shape, -1, dtype=np.int64) for _ in range(2))
    asked = rays_of(values_first, values_count, values)
    for rows, ask in zip(rays_of(first, count, sorted), asked, strict=True):
        require((np.diff(sorted[rows]) >= 0).all(), "must ascend")
        for out, found in zip((left, right), neighbours(sorted[rows], values[ask]), strict=True):
            out[ask] = np.where(found < 0, -1, found + rows.start)
    return left, right


def if_ascending(expected: Any) -> Any:
    """The property of a search. If the row does not ascend, indices exist all the same."""
    plainly = equals(expected)

    def holds(args: Args, result: Any) -> str:
        bad = plainly(args, result)
        if "must ascend" not in bad and moderate(args):
            return bad
        most = args["sorted"].shape[-1] if args["sorted"].ndim else 1
        exist = all(bool(((part >= -1) & (part < max(most, 1))).all()) for part in result)
        shaped = all(part.shape == args["values"].shape for part in result)
        return "" if exist and shaped else "an index does not exist"

    return holds


# ---- inverse CDFs


def rises(edges: Array, cdfs: Array) -> bool:
    return bool((np.diff(edges) >= 0).all() and (np.diff(cdfs) >= 0).all())


def right_places(edges: Array, cdfs: Array, u: Array, found: Array, coarse: float) -> str:
    """What is wrong with the distances of one ray at which its CDF takes the values u."""
    if not len(edges):
        return "" if not found.any() else "a ray without edges must give 0"
    room = coarse * max(1.0, np.abs(edges).max())
    if (found < edges.min() - room).any() or (found > edges.max() + room).any():
        return "a distance lies outside of its ray"
    if not rises(edges, cdfs) or (np.diff(cdfs) < 1e-6).any() or (np.diff(edges) < 1e-6).any():
        return ""
    wanted = np.interp(u, cdfs, edges)
    return "" if (np.abs(found - wanted) <= room).all() else "a distance lies where the CDF has another value"


def _coarse(args: Args) -> float:
    halves = any(isinstance(value, Tensor) and value.dtype == torch.float16 for value in args.values())
    return 5e-2 if halves else 1e-3


@careful
def inverted(args: Args, result: Tensor) -> str:
    edges, cdfs, u, found = (plain(part) for part in (args["edges"], args["cdfs"], args["u"], result))
    alike(edges, cdfs)
    require(u.dtype == np.float64, "types")
    require(edges.ndim and u.ndim == edges.ndim and u.shape[:-1] == edges.shape[:-1], "shapes")
    if found.shape != u.shape:
        return f"shape {list(found.shape)}"
    if not moderate(args):
        return ""
    rows = zip(*(part.reshape(-1, part.shape[-1]) for part in (edges, cdfs, u, found)), strict=True)
    return next((bad for row in rows if (bad := right_places(*row, _coarse(args)))), "") if u.size else ""


@careful
def inverted_packed(args: Args, result: Tensor) -> str:
    edges, cdfs, u, found = (plain(part) for part in (args["edges"], args["cdfs"], args["u"], result))
    alike(edges, cdfs)
    require(u.dtype == np.float64 and len(args["first"]) == len(args["u_first"]), "u")
    rays = rays_of(plain(args["first"]), plain(args["count"]), edges)
    asked = rays_of(plain(args["u_first"]), plain(args["u_count"]), u)
    if found.shape != u.shape:
        return f"shape {list(found.shape)}"
    if not moderate(args):
        return ""
    each = (right_places(edges[r], cdfs[r], u[a], found[a], _coarse(args)) for r, a in zip(rays, asked, strict=True))
    return next((bad for bad in each if bad), "")


# ---- resampling


def resampled_ray(edges: Array, cdfs: Array, new: Array, samples: Array, offset: float, coarse: float) -> str:
    """What is wrong with the new edges [m + 1] and samples [m] of one ray."""
    if len(new) != (len(samples) + 1 if len(samples) else 0):
        return "a ray with m samples must have m + 1 edges"
    if not len(samples) or not len(edges):
        return "" if not samples.any() and not new.any() else "a ray without edges must give 0"
    room = coarse * max(1.0, np.abs(edges).max())
    if (np.diff(edges) < 0).any() or (np.diff(cdfs) < 0).any():
        return ""
    if (np.diff(samples) < -room).any() or (np.diff(new) < -room).any():
        return "new intervals do not ascend"
    flat = cdfs if cdfs[-1] > cdfs[0] else edges
    u = flat[0] + (np.arange(len(samples)) + offset) * (flat[-1] - flat[0]) / len(samples)
    inside = (new >= edges[0] - room).all() and (new <= edges[-1] + room).all()
    return right_places(edges, flat, u, samples, coarse) if inside else "a new edge lies outside of its ray"


@careful
def resampled(args: Args, result: importance.Resampled) -> str:
    edges, cdfs = plain(args["edges"]), plain(args["cdfs"])
    alike(edges, cdfs)
    offset = plain(args["stratified"])
    require(offset.shape == edges.shape[:-1] and offset.dtype == np.float64, "stratified")
    new, samples = plain(result.edges), plain(result.samples)
    if new.shape != (*edges.shape[:-1], args["n"] + 1) or samples.shape != (*edges.shape[:-1], args["n"]):
        return f"shapes {list(new.shape)} and {list(samples.shape)}"
    if not moderate(args) or not ((offset >= 0) & (offset <= 1)).all():
        return ""
    rows = [part.reshape(-1, part.shape[-1]) for part in (edges, cdfs, new, samples)]
    each = (resampled_ray(*row, o, _coarse(args)) for *row, o in zip(*rows, offset.reshape(-1), strict=True))
    return next((bad for bad in each if bad), "")


@careful
def resampled_packed(args: Args, result: importance.Resampled) -> str:
    edges, cdfs, n = plain(args["edges"]), plain(args["cdfs"]), plain(args["n"])
    alike(edges, cdfs)
    rays = rays_of(plain(args["first"]), plain(args["count"]), edges)
    require(n.shape == (len(rays),) and n.dtype == np.int64 and (n >= 0).all(), "n")
    if result.edge_pack is None or result.sample_pack is None:
        return "packs are missing"
    new, samples = plain(result.edges), plain(result.samples)
    new_rays = rays_of(plain(result.edge_pack.first), plain(result.edge_pack.count), new)
    sample_rays = rays_of(plain(result.sample_pack.first), plain(result.sample_pack.count), samples)
    if [r.stop - r.start for r in sample_rays] != [
        int(k) if r.stop > r.start else 0 for k, r in zip(n, rays, strict=True)
    ]:
        return "a ray has another number of samples"
    if not moderate(args):
        return ""
    each = (
        resampled_ray(edges[r], cdfs[r], new[e], samples[s], 0.5, _coarse(args))
        for r, e, s in zip(rays, new_rays, sample_rays, strict=True)
    )
    return next((bad for bad in each if bad), "")


def half_way(samples: Array, low: Array, high: Array) -> Array:
    require(samples.ndim and low.shape == high.shape == samples.shape[:-1], "shapes")
    require(all(part.dtype == np.float64 for part in (samples, low, high)), "types")
    if samples.shape[-1] < 2:
        return np.stack((low, high), -1) if samples.shape[-1] else np.zeros((*low.shape, 0))
    inner = (samples[..., 1:] + samples[..., :-1]) / 2
    first = np.maximum(2 * samples[..., 0] - inner[..., 0], low)
    last = np.minimum(2 * samples[..., -1] - inner[..., -1], high)
    return np.concatenate((first[..., None], inner, last[..., None]), -1)


CASES = [
    Case(
        (f"{TOOLS}.importance.searchsorted",),
        lambda rng, size: {"sorted": edges_args(rng, size)["edges"], "values": rand(rng, size.rays, VALUES, high=4)},
        importance.searchsorted,
        holds=if_ascending(searched),
        label="batched",
    ),
    Case(
        (f"{TOOLS}.importance.searchsorted",),
        lambda rng, size: {
            "sorted": (args := packed_edges_args(rng, size))["edges"],
            "first": args["first"],
            "count": args["count"],
            **queries(rng, size, "values", 12.0),
        },
        lambda sorted, values, first, count, values_first, values_count: importance.searchsorted(
            sorted, values, (Pack(first, count), Pack(values_first, values_count))
        ),
        holds=if_ascending(searched_packed),
        label="packed",
    ),
    Case(
        (f"{TOOLS}.importance.inverse_cdf",),
        lambda rng, size: {**edges_args(rng, size), "u": rand(rng, size.rays, VALUES)},
        importance.inverse_cdf,
        holds=inverted,
        label="batched",
    ),
    Case(
        (f"{TOOLS}.importance.inverse_cdf",),
        lambda rng, size: {**packed_edges_args(rng, size), **queries(rng, size, "u", 12.0)},
        lambda edges, cdfs, u, first, count, u_first, u_count: importance.inverse_cdf(
            edges, cdfs, u, (Pack(first, count), Pack(u_first, u_count))
        ),
        holds=inverted_packed,
        label="packed",
    ),
    Case(
        (f"{TOOLS}.importance.importance_samples",),
        lambda rng, size: {**edges_args(rng, size), "n": VALUES, "stratified": rand(rng, size.rays)},
        importance.importance_samples,
        holds=resampled,
        label="batched",
    ),
    Case(
        (f"{TOOLS}.importance.importance_samples",),
        lambda rng, size: {**packed_edges_args(rng, size), "n": torch.arange(size.rays) % 3},
        lambda first, count, **args: importance.importance_samples(**args, pack=Pack(first, count)),
        holds=resampled_packed,
        label="packed",
    ),
    Case(
        (f"{TOOLS}.importance.edges_between",),
        lambda rng, size: {
            "samples": rand(rng, size.rays, VALUES).cumsum(-1),
            "low": torch.zeros(size.rays),
            "high": torch.full((size.rays,), 5.0),
        },
        importance.edges_between,
        holds=equals(half_way),
    ),
]

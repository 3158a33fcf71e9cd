"""Fuzz cases of `raymine.compat.nerfacc`. It is thin over the toolkit, and so are the expectations.

Here are importance sampling, boxes, grids and lenses. The cases of volume rendering are in `fuzz_nerfacc_volume`, those
of estimators in `fuzz_nerfacc_estimators`, those of tiny-cuda-nn's API in `fuzz_tinycudann`; `CASES` has all of them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.compat import nerfacc
from raymine.compat.nerfacc import cameras, pdf
from support import fuzz_compat_install, fuzz_nerfacc_estimators, fuzz_nerfacc_volume, fuzz_tinycudann
from support import fuzz_importance as importance
from support import fuzz_occupancy as grids
from support import fuzz_toolkit as tools
from support.fuzz import USUAL, Args, Case, Size
from support.fuzz_arguments import rand
from support.fuzz_expect import Array, careful, equals, moderate, renamed, require
from support.fuzz_kernels_rays import traverse_args

NERFACC = "raymine.compat.nerfacc"

# ---- importance sampling


def search_args(rng: torch.Generator, size: Size) -> Args:
    edges = importance.packed_edges_args(rng, size)
    values = importance.queries(rng, size, "values", 12.0)
    return {
        "sorted": edges["edges"],
        "sorted_info": torch.stack((edges["first"], edges["count"]), -1),
        "values": values["values"],
        "values_info": torch.stack((values["values_first"], values["values_count"]), -1),
    }


def run_search(sorted: Tensor, sorted_info: Tensor, values: Tensor, values_info: Tensor) -> Any:
    return pdf.searchsorted(nerfacc.RayIntervals(sorted, sorted_info), nerfacc.RaySamples(values, values_info))


def searched(sorted: Array, sorted_info: Array, values: Array, values_info: Array) -> Any:
    for info in (sorted_info, values_info):
        require(info.ndim == 2 and info.shape[1] == 2 and info.dtype == np.int64, "packed_info")
    return importance.searched_packed(
        sorted, sorted_info[:, 0], sorted_info[:, 1], values, values_info[:, 0], values_info[:, 1]
    )


def resample_args(rng: torch.Generator, size: Size) -> Args:
    edges = importance.packed_edges_args(rng, size)
    info = torch.stack((edges["first"], edges["count"]), -1)
    return {"edges": edges["edges"], "cdfs": edges["cdfs"], "info": info, "n": torch.arange(size.rays) % 3}


def run_resample(edges: Tensor, cdfs: Tensor, info: Tensor, n: Tensor) -> Any:
    return pdf.importance_sampling(nerfacc.RayIntervals(edges, info), cdfs, n)


@careful
def resampled(args: Args, result: Any) -> str:
    edges, samples = result
    require(args["info"].ndim == 2 and args["info"].shape[1] == 2 and not args["info"].is_floating_point(), "info")
    packs = [SimpleNamespace(first=part.packed_info[:, 0], count=part.packed_info[:, 1]) for part in result]
    found = SimpleNamespace(edges=edges.vals, samples=samples.vals, edge_pack=packs[0], sample_pack=packs[1])
    left, right = edges.is_left.long().sum(), edges.is_right.long().sum()
    if not left == right == len(samples.vals):
        return "as many edges must start and end an interval as there are samples"
    own = {"edges": args["edges"], "cdfs": args["cdfs"], "n": args["n"].flatten()}
    return importance.resampled_packed({**own, "first": args["info"][:, 0], "count": args["info"][:, 1]}, found)


def run_resample_batched(edges: Tensor, cdfs: Tensor, n: int) -> Any:
    found, samples = pdf.importance_sampling(nerfacc.RayIntervals(edges), cdfs, n)
    return SimpleNamespace(edges=found.vals, samples=samples.vals)


def resampled_batched(args: Args, result: Any) -> str:
    half = torch.full(args["edges"].shape[:-1], 0.5)
    return importance.resampled({**args, "stratified": half}, result)


# ---- boxes and grids


def crossed(rays_o: Array, rays_d: Array, aabbs: Array, near_plane: float, far_plane: float, miss_value: float) -> Any:
    low, high, hit = tools.crossed(rays_o, rays_d, aabbs, -np.inf, np.inf, 0.0)
    hit = hit & (high > 0)
    return (
        np.where(hit, np.maximum(low, near_plane), miss_value),
        np.where(hit, np.minimum(high, far_plane), miss_value),
        hit,
    )


NAMES = {"origins": "rays_o", "directions": "rays_d", "near": "near_planes", "far": "far_planes"}
NAMES |= {"limit": "traverse_steps_limit", "mask": "rays_mask"}
BACK = {theirs: ours for ours, theirs in NAMES.items()}


def traverse_grid_args(rng: torch.Generator, size: Size) -> Args:
    args = traverse_args(rng, size)
    return {NAMES.get(name, name): value for name, value in args.items()}


@careful
def traversed(args: Args, result: Any) -> str:
    """Samples are the midpoints of intervals, and lie in occupied cells."""
    intervals, samples, end = result
    if end.shape != args["rays_o"].shape[:1]:
        return f"ends of shape {list(end.shape)}"
    starts, ends = intervals.vals[intervals.is_left], intervals.vals[intervals.is_right]
    if not len(starts) == len(ends) == len(samples.vals):
        return "as many edges must start and end an interval as there are samples"
    if not moderate(args):
        return ""
    own = {BACK.get(name, name): value for name, value in args.items()}
    pack = samples.packed_info
    found = SimpleNamespace(t_start=starts, t_end=ends, ray_id=samples.ray_indices, first=pack[:, 0], count=pack[:, 1])
    limit = args["traverse_steps_limit"]
    if limit > 0 and bool((found.count > limit).any()):
        return "a ray has more samples than the limit"
    return grids.placed(own, found)


LENS = {"params": "coefficients", "uv": "points", "iters": "iterations", "eps": "tolerance"}

CASES = [
    *fuzz_nerfacc_volume.CASES,
    Case((f"{NERFACC}.pdf.searchsorted",), search_args, run_search, holds=importance.if_ascending(searched)),
    Case((f"{NERFACC}.pdf.importance_sampling",), resample_args, run_resample, holds=resampled, label="flattened"),
    Case(
        (f"{NERFACC}.pdf.importance_sampling",),
        lambda rng, size: {**importance.edges_args(rng, size), "n": 4},
        run_resample_batched,
        holds=resampled_batched,
        label="batched",
    ),
    Case(
        (f"{NERFACC}.grid.ray_aabb_intersect",),
        lambda rng, size: {
            {"origins": "rays_o", "directions": "rays_d", "boxes": "aabbs"}.get(name, f"{name}_plane").replace(
                "miss_plane", "miss_value"
            ): value
            for name, value in tools.box_args(rng, size).items()
        },
        nerfacc.ray_aabb_intersect,
        holds=equals(crossed),
    ),
    Case((f"{NERFACC}.grid.traverse_grids",), traverse_grid_args, nerfacc.traverse_grids, holds=traversed),
    Case(
        (f"{NERFACC}.cameras.opencv_lens_undistortion",),
        lambda rng, size: {
            "uv": rand(rng, size.samples, 2, high=0.5),
            "params": rand(rng, 8, low=-0.03, high=0.03),
            "eps": 1e-6,
            "iters": 10,
        },
        cameras.opencv_lens_undistortion,
        holds=renamed(tools.distorts_back(tools.distorted), **LENS),
    ),
    Case(
        (f"{NERFACC}.cameras.opencv_lens_undistortion_fisheye",),
        lambda rng, size: {
            "uv": rand(rng, size.samples, 2, high=0.5),
            "params": rand(rng, 4, low=-0.03, high=0.03),
            "iters": 10,
        },
        cameras.opencv_lens_undistortion_fisheye,
        holds=renamed(tools.distorts_back(tools.fisheye), **LENS),
    ),
    *fuzz_nerfacc_estimators.CASES,
    Case(
        (f"{NERFACC}.install",),
        lambda *_: {"there": 0},
        fuzz_compat_install.run_install(nerfacc, "nerfacc"),
        holds=fuzz_compat_install.installed,
        sizes=(USUAL,),
    ),
    *fuzz_tinycudann.CASES,
]

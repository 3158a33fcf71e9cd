"""Fuzz cases of `raymine.compat.nerfacc`. It is thin over the toolkit, and so are the expectations.

The cases of tiny-cuda-nn's API are in `fuzz_tinycudann`; `CASES` has both.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.compat import nerfacc
from raymine.compat.nerfacc import cameras, losses, pdf, scan, volrend
from raymine.compat.nerfacc.estimators.base import AbstractEstimator
from raymine.compat.nerfacc.estimators.prop_net import PropNetEstimator
from support import fuzz_compat_install, fuzz_tinycudann
from support import fuzz_occupancy as grids
from support import fuzz_sampling as sampling
from support import fuzz_toolkit as tools
from support.fuzz import USUAL, Args, Case, Size
from support.fuzz_expect import Array, careful, equals, moderate, plain, require
from support.fuzz_kernels import rand, traverse_args

NERFACC = "raymine.compat.nerfacc"


def renamed(holds: Any, **names: str) -> Any:
    """A property of the toolkit for arguments with other names: names[theirs] = ours."""
    return lambda args, result: holds({names.get(name, name): value for name, value in args.items()}, result)


def with_ids(make: Any, **names: str) -> Any:
    """Packed arguments with `ray_indices` and `n_rays` in place of a pack, and with other names."""

    def made(rng: torch.Generator, size: Size) -> Args:
        args = make(rng, size)
        count = args.pop("count")
        args.pop("first")
        rest = {names.get(name, name): value for name, value in args.items()}
        return {**rest, "ray_indices": torch.repeat_interleave(torch.arange(len(count)), count), "n_rays": len(count)}

    return made


def with_info(make: Any, **names: str) -> Any:
    """Packed arguments with `packed_info` in place of a pack, and with other names."""

    def made(rng: torch.Generator, size: Size) -> Args:
        args = make(rng, size)
        info = torch.stack((args.pop("first"), args.pop("count")), -1)
        return {**{names.get(name, name): value for name, value in args.items()}, "packed_info": info}

    return made


def pack_of(args: dict[str, Any]) -> dict[str, Any]:
    """`first` and `count` instead of `packed_info`, or of `ray_indices` and `n_rays`, as arrays."""
    args = dict(args)
    if "packed_info" in args:
        info = args.pop("packed_info")
        require(info.ndim == 2 and info.shape[1] == 2 and info.dtype == np.int64, "packed_info")
        return {**args, "first": info[:, 0], "count": info[:, 1]}
    ids, n = args.pop("ray_indices"), args.pop("n_rays")
    require(ids.ndim == 1 and ids.dtype == np.int64 and ((ids >= 0) & (ids < n)).all(), "ray_indices")
    require((np.diff(ids) >= 0).all(), "ray_indices must ascend")
    count = np.bincount(ids, minlength=n)[:n]
    return {**args, "first": count.cumsum() - count, "count": count}


def packed(expected: Any, **names: str) -> Any:
    """A brute force of the toolkit for arguments of nerfacc."""
    return lambda **args: expected(**{names.get(name, name): value for name, value in pack_of(args).items()})


# ---- volume rendering

OURS = {"t_starts": "t_start", "t_ends": "t_end", "sigmas": "density", "prefix_trans": "prefix", "alphas": "alpha"}
THEIRS = {ours: theirs for theirs, ours in OURS.items()}


def seen(weights: Any) -> Any:
    """The property of visibility, for arguments of nerfacc."""
    wanted = tools.visible_of(lambda **args: weights(**pack_of(args)))
    return renamed(wanted, **OURS, early_stop_eps="stop", alpha_thre="faint")


def volume_cases() -> list[Case]:
    at, limits = f"{NERFACC}.volrend", {"early_stop_eps": 1e-2, "alpha_thre": 1e-2}
    found = []
    for label, layout in (("info", with_info), ("ids", with_ids)):
        density = layout(tools.sample_args, **THEIRS)
        alpha = layout(tools.alpha_of(tools.sample_args), **THEIRS)
        for run, make, weights, parts in (
            (volrend.render_transmittance_from_density, density, tools.density_weights, (1, 2)),
            (volrend.render_weight_from_density, density, tools.density_weights, (0, 1, 2)),
            (volrend.render_transmittance_from_alpha, alpha, tools.alpha_weights, (1,)),
            (volrend.render_weight_from_alpha, alpha, tools.alpha_weights, (0, 1)),
        ):
            # One callable suffices for the other layout, since all of them read it by one function.
            if label == "ids" and run is not volrend.render_weight_from_density:
                continue
            wanted = packed(weights, **OURS)
            found.append(
                Case(
                    (f"{at}.{run.__name__}",),
                    make,
                    run,
                    holds=equals(lambda wanted=wanted, parts=parts, **args: [wanted(**args)[k] for k in parts]),
                    label=label,
                )
            )
        for run, make, weights in (
            (volrend.render_visibility_from_density, density, tools.density_weights),
            (volrend.render_visibility_from_alpha, alpha, tools.alpha_weights),
        ):
            if label == "ids":
                continue
            found.append(
                Case(
                    (f"{at}.{run.__name__}",),
                    lambda rng, size, make=make: {**make(rng, size), **limits},
                    run,
                    holds=seen(weights),
                    label=label,
                )
            )
    return found


def rendering_args(rng: torch.Generator, size: Size) -> Args:
    args = with_ids(tools.rendering_args, t_start="t_starts", t_end="t_ends", background="render_bkgd")(rng, size)
    return {**args, "n_rays": max(args["n_rays"], 1)} if size.samples else args


def run_rendering(rgb: Tensor, opaque: Tensor, **args: Any) -> Any:
    return volrend.rendering(**args, rgb_sigma_fn=lambda *_: (rgb, opaque))


def accumulate_args(rng: torch.Generator, size: Size) -> Args:
    return with_ids(tools.accumulate_packed_args)(rng, size)


def summed(weights: Array, values: Array, ray_indices: Array, n_rays: int) -> Array:
    """Rays in any order."""
    require(weights.shape == ray_indices.shape == (len(weights),) and values.ndim == 2, "shapes")
    require(ray_indices.dtype == np.int64 and ((ray_indices >= 0) & (ray_indices < n_rays)).all(), "ray_indices")
    require(len(values) == len(weights), "values")
    out = np.zeros((n_rays, values.shape[1]), dtype=(weights[:1, None] * values[:1]).dtype)
    for ray, part in zip(ray_indices, weights[:, None] * values, strict=True):
        out[ray] += part
    return out


def run_accumulate_inplace(n_rays: int, values: Tensor, outputs: Tensor, **args: Any) -> Tensor:
    before = outputs.clone()
    volrend.accumulate_along_rays_(values=values, **args, outputs=outputs)
    return outputs - before


def inplace_sums(n_rays: int, outputs: Array, **args: Array) -> Array:
    require(
        outputs.ndim == 2 and outputs.shape[1] == args["values"].shape[1] and outputs.dtype == np.float64, "outputs"
    )
    return summed(**args, n_rays=len(outputs))


# ---- scans and packs


def scan_args(rng: torch.Generator, size: Size) -> Args:
    return with_info(lambda rng, size: {"inputs": rand(rng, size.samples), **tools.packed_rays(rng, size)})(rng, size)


def scan_ids_args(rng: torch.Generator, size: Size) -> Args:
    args = with_ids(lambda rng, size: {"inputs": rand(rng, size.samples), **tools.packed_rays(rng, size)})(rng, size)
    return {"inputs": args["inputs"], "indices": args["ray_indices"]}


def scanned(function: Any, exclusive: bool) -> Any:
    def expected(inputs: Array, packed_info: Array) -> Array:
        require(inputs.ndim == 1, "flat")
        return packed(tools.scanned_rays(function, exclusive), inputs="values")(inputs=inputs, packed_info=packed_info)[
            0
        ]

    return expected


def scanned_runs(function: Any, exclusive: bool) -> Any:
    """Each run of equal indices is a ray."""

    def expected(inputs: Array, indices: Array) -> Array:
        require(indices.shape == inputs.shape == (len(inputs),) and inputs.dtype == np.float64, "shapes")
        starts = np.flatnonzero(np.concatenate((np.ones(min(len(indices), 1)), indices[1:] != indices[:-1])))
        count = np.diff(np.append(starts, len(indices)))
        return tools.scanned_rays(function, exclusive)(inputs, starts, count)[0]

    return expected


def info_of(ray_indices: Array, n_rays: int) -> Array:
    require(ray_indices.ndim == 1 and ray_indices.dtype == np.int64, "ray_indices")
    require(n_rays >= 0 and ((ray_indices >= 0) & (ray_indices < n_rays)).all(), "ray_indices")
    require((np.diff(ray_indices) >= 0).all(), "ray_indices must ascend")
    count = np.bincount(ray_indices, minlength=n_rays)[:n_rays]
    return np.stack((count.cumsum() - count, count), -1)


# ---- importance sampling


def search_args(rng: torch.Generator, size: Size) -> Args:
    edges = sampling.packed_edges_args(rng, size)
    values = sampling.queries(rng, size, "values", 12.0)
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
    return sampling.searched_packed(
        sorted, sorted_info[:, 0], sorted_info[:, 1], values, values_info[:, 0], values_info[:, 1]
    )


def resample_args(rng: torch.Generator, size: Size) -> Args:
    edges = sampling.packed_edges_args(rng, size)
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
    return sampling.resampled_packed({**own, "first": args["info"][:, 0], "count": args["info"][:, 1]}, found)


def run_resample_batched(edges: Tensor, cdfs: Tensor, n: int) -> Any:
    found, samples = pdf.importance_sampling(nerfacc.RayIntervals(edges), cdfs, n)
    return SimpleNamespace(edges=found.vals, samples=samples.vals)


def resampled_batched(args: Args, result: Any) -> str:
    half = torch.full(args["edges"].shape[:-1], 0.5)
    return sampling.resampled({**args, "stratified": half}, result)


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


# ---- estimators


def estimator() -> nerfacc.OccGridEstimator:
    torch.manual_seed(7)
    made = nerfacc.OccGridEstimator(grids.BOX, grids.SIDES, grids.LEVELS)
    made.occs.copy_(torch.rand(grids.LEVELS * grids.CELLS) - 0.2)
    made.binaries = (made.occs > 0.3).view(grids.LEVELS, *grids.SIDES)
    return made


def sampling_args(rng: torch.Generator, size: Size) -> Args:
    names = {"origins": "rays_o", "directions": "rays_d", "near": "near_plane", "far": "far_plane"}
    names |= {"step": "render_step_size", "early_stop": "early_stop_eps", "alpha_threshold": "alpha_thre"}
    return {names.get(name, name): value for name, value in grids.ray_args(rng, size).items()}


def run_sampling(**args: Any) -> Any:
    return estimator().sampling(**args, sigma_fn=grids.density_at)


@careful
def sampled(args: Args, result: Any) -> str:
    names = {"rays_o": "origins", "rays_d": "directions", "near_plane": "near", "far_plane": "far"}
    ray_id, t_start, t_end = result
    count = torch.bincount(ray_id, minlength=len(args["rays_o"]))
    found = SimpleNamespace(t_start=t_start, t_end=t_end, ray_id=ray_id, first=count.cumsum(0) - count, count=count)
    return grids.placed({names.get(name, name): value for name, value in args.items()}, found)


def run_grid_update(**args: Any) -> Any:
    made = estimator()
    before = made.occs.clone()
    made.update_every_n_steps(args.pop("step"), lambda x: 0.5 + 0.25 * x[:, :1], **args)
    return before, made.occs, made.binaries


def run_mark(**args: Any) -> Tensor:
    made = nerfacc.OccGridEstimator(grids.BOX, grids.SIDES, grids.LEVELS)
    made.mark_invisible_cells(**args)
    return made.occs >= 0


def run_new(box: Tensor, resolution: int, levels: int) -> Any:
    made = nerfacc.OccGridEstimator(box, resolution, levels)
    return made.aabbs[0], ~made.binaries, made.occs


def levels_args(rng: torch.Generator, size: Size) -> Args:
    """The proposal returns `density`, so that wrong results of a callback are tried too."""
    return {
        "density": rand(rng, size.rays, 6, high=3),
        "samples": 6,
        "final": 4,
        "n_rays": size.rays,
        "near_plane": 0.5,
        "far_plane": 4.0,
    }


def run_levels(kind: Any) -> Any:
    def run(density: Tensor, samples: int, final: int, **args: Any) -> Any:
        return PropNetEstimator().sampling([lambda *_: density], [samples], final, **args, sampling_type=kind)

    return run


@careful
def in_span(args: Args, result: Any) -> str:
    """Intervals follow one another from near to far."""
    start, end = (plain(part) for part in result)
    near, far = args["near_plane"], args["far_plane"]
    require(args["density"].shape == (args["n_rays"], args["samples"]), "density")
    if start.shape != (args["n_rays"], args["final"]) or end.shape != start.shape:
        return f"shape {list(start.shape)}"
    if not moderate(args) or not 0 < near < far < 1e6:
        return ""
    sound = (start <= end + 1e-3).all() and (start >= near - 1e-3).all() and (end <= far + 1e-3).all()
    return "" if sound and (np.abs(start[:, 1:] - end[:, :-1]) < 1e-3).all() else "intervals leave near .. far"


def a_proposal() -> tuple[PropNetEstimator, torch.nn.Parameter]:
    rng = torch.Generator().manual_seed(3)
    weight = torch.nn.Parameter(rand(rng, USUAL.rays, 6, high=3))
    made = PropNetEstimator(torch.optim.SGD([weight], lr=0.1))
    made.sampling([lambda *_: weight], [6], 4, USUAL.rays, 0.2, 3.0, requires_grad=True)
    return made, weight


def run_loss(transmittance: Tensor, loss_scaler: float) -> Any:
    made, _ = a_proposal()
    (own, cdfs), (final, _) = made.prop_cache
    return made.compute_loss(transmittance, loss_scaler), own.vals, cdfs.detach(), final.vals


def run_prop_update(transmittance: Tensor, loss_scaler: float) -> Any:
    made, weight = a_proposal()
    before = weight.detach().clone()
    loss = made.update_every_n_steps(transmittance, True, loss_scaler)
    return loss, float((weight.detach() - before).abs().max())


# ---- the rest


def run_abstract(value: int) -> Any:
    def refuses(call: Any) -> bool:
        try:
            return call(value) is not None
        except NotImplementedError:
            return True

    made = AbstractEstimator()
    return [call.__name__ for call in (made.sampling, made.update_every_n_steps) if refuses(call)]


LENS = {"params": "coefficients", "uv": "points", "iters": "iterations", "eps": "tolerance"}
CASES = [
    *volume_cases(),
    Case(
        (f"{NERFACC}.volrend.rendering",),
        rendering_args,
        run_rendering,
        ("rgb", "opaque"),
        holds=equals(
            packed(tools.rendered("rgb_sigma_fn"), t_starts="t_start", t_ends="t_end", render_bkgd="background")
        ),
    ),
    Case(
        (f"{NERFACC}.volrend.accumulate_along_rays",),
        accumulate_args,
        volrend.accumulate_along_rays,
        holds=equals(summed),
    ),
    Case(
        (f"{NERFACC}.volrend.accumulate_along_rays_",),
        lambda rng, size: {**(args := accumulate_args(rng, size)), "outputs": torch.ones(args["n_rays"], 3)},
        run_accumulate_inplace,
        inplace=("outputs",),
        holds=lambda args, result: equals(inplace_sums)({**args, "outputs": result}, result) if moderate(args) else "",
    ),
    *(
        Case(
            (f"{NERFACC}.scan.{run.__name__}",),
            make,
            run,
            ("inputs",) if make is scan_args else (),
            holds=equals(expected(function, exclusive)),
            label=label,
        )
        for label, make, expected in (("info", scan_args, scanned), ("ids", scan_ids_args, scanned_runs))
        for run, function, exclusive in (
            (scan.inclusive_sum, np.add, False),
            (scan.exclusive_sum, np.add, True),
            (scan.inclusive_prod, np.multiply, False),
            (scan.exclusive_prod, np.multiply, True),
        )
    ),
    Case(
        (f"{NERFACC}.pack.pack_info",),
        lambda rng, size: {k: v for k, v in accumulate_args(rng, size).items() if k in ("ray_indices", "n_rays")},
        nerfacc.pack_info,
        holds=equals(info_of),
    ),
    Case((f"{NERFACC}.pdf.searchsorted",), search_args, run_search, holds=sampling.if_ascending(searched)),
    Case((f"{NERFACC}.pdf.importance_sampling",), resample_args, run_resample, holds=resampled, label="flattened"),
    Case(
        (f"{NERFACC}.pdf.importance_sampling",),
        lambda rng, size: {**sampling.edges_args(rng, size), "n": 4},
        run_resample_batched,
        holds=resampled_batched,
        label="batched",
    ),
    Case(
        (f"{NERFACC}.losses.distortion",),
        with_ids(tools.distortion_packed_args),
        losses.distortion,
        ("weights",),
        holds=tools.ascending(lambda **args: packed(tools.distortion_packed)(**args)[:, None]),
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
    Case((f"{NERFACC}.estimators.occ_grid.OccGridEstimator.sampling",), sampling_args, run_sampling, holds=sampled),
    Case(
        (f"{NERFACC}.estimators.occ_grid.OccGridEstimator",),
        lambda *_: {"box": grids.BOX.clone(), "resolution": 3, "levels": 2},
        run_new,
        holds=grids.empty_grid,
        sizes=(USUAL,),
    ),
    Case(
        (f"{NERFACC}.estimators.occ_grid.OccGridEstimator.update_every_n_steps",),
        lambda *_: {"step": 32, "occ_thre": 0.05, "ema_decay": 0.9, "warmup_steps": 64, "n": 16},
        run_grid_update,
        holds=renamed(grids.grid_updated, occ_thre="threshold"),
        sizes=(USUAL,),
    ),
    Case(
        (f"{NERFACC}.estimators.occ_grid.OccGridEstimator.mark_invisible_cells",),
        grids.camera_args,
        run_mark,
        holds=grids.seen_by,
        sizes=(USUAL,),
    ),
    *(
        Case(
            (
                f"{NERFACC}.estimators.prop_net.PropNetEstimator",
                f"{NERFACC}.estimators.prop_net.PropNetEstimator.sampling",
            ),
            levels_args,
            run_levels(kind),
            holds=in_span,
            label=kind,
        )
        for kind in ("uniform", "lindisp")
    ),
    Case(
        (f"{NERFACC}.estimators.prop_net.PropNetEstimator.compute_loss",),
        sampling.loss_args,
        run_loss,
        holds=sampling.loss_of_levels,
        sizes=(USUAL,),
    ),
    Case(
        (f"{NERFACC}.estimators.prop_net.PropNetEstimator.update_every_n_steps",),
        sampling.loss_args,
        run_prop_update,
        holds=sampling.trained,
        sizes=(USUAL,),
    ),
    Case(
        tuple(
            f"{NERFACC}.estimators.base.AbstractEstimator{name}" for name in ("", ".sampling", ".update_every_n_steps")
        ),
        lambda *_: {"value": 1},
        run_abstract,
        holds=lambda _, refused: (
            "" if refused == ["sampling", "update_every_n_steps"] else f"only {refused} is abstract"
        ),
        sizes=(USUAL,),
    ),
    Case(
        (f"{NERFACC}.install",),
        lambda *_: {"there": 0},
        fuzz_compat_install.run_install(nerfacc, "nerfacc"),
        holds=fuzz_compat_install.installed,
        sizes=(USUAL,),
    ),
    *fuzz_tinycudann.CASES,
]

"""Fuzz cases of volume rendering, scans, packs and the distortion loss of `raymine.compat.nerfacc`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.compat import nerfacc
from raymine.compat.nerfacc import losses, scan, volrend
from support import fuzz_volume as tools
from support.fuzz import Args, Case, Size
from support.fuzz_arguments import packed_rays, rand
from support.fuzz_expect import Array, equals, moderate, renamed, require

NERFACC = "raymine.compat.nerfacc"

# ---- layouts of packed samples


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
    return with_info(lambda rng, size: {"inputs": rand(rng, size.samples), **packed_rays(rng, size)})(rng, size)


def scan_ids_args(rng: torch.Generator, size: Size) -> Args:
    args = with_ids(lambda rng, size: {"inputs": rand(rng, size.samples), **packed_rays(rng, size)})(rng, size)
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
    Case(
        (f"{NERFACC}.losses.distortion",),
        with_ids(tools.distortion_packed_args),
        losses.distortion,
        ("weights",),
        holds=tools.ascending(lambda **args: packed(tools.distortion_packed)(**args)[:, None]),
    ),
]

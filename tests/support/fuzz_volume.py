"""Fuzz cases of `raymine.toolkit`: scans along rays, volume rendering and the distortion loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.toolkit import losses, scan, volume
from raymine.toolkit.pack import Pack
from support.fuzz import Args, Case, Size
from support.fuzz_arguments import intervals, only, packed_rays, rand
from support.fuzz_expect import Array, alike, by_ray, careful, equals, moderate, plain, require, sums_by_ray

TOOLS = "raymine.toolkit"

# ---- scans


def batch(rng: torch.Generator, size: Size) -> tuple[int, int]:
    """Rays and samples of each of them."""
    return size.rays, -(-size.samples // max(size.rays, 1))


def scan_args(rng: torch.Generator, size: Size) -> Args:
    return {"values": rand(rng, size.samples, 2, low=0.5, high=1.5), **packed_rays(rng, size)}


def scanned(function: Any, exclusive: bool) -> Any:
    def expected(values: Array) -> Array:
        require(values.ndim >= 1 and values.dtype.kind in "fi", "values")
        if exclusive:
            start = np.full_like(values[..., :1], function.identity)
            values = np.concatenate((start, values[..., :-1]), -1)
        return function.accumulate(values, -1) if values.size else values

    return expected


def scanned_rays(function: Any, exclusive: bool) -> Any:
    def expected(values: Array, first: Array, count: Array) -> Any:
        require(values.ndim in (1, 2) and values.dtype == np.float64, "values")
        return by_ray(lambda x: scanned(function, exclusive)(x.T).T, first, count, values, gaps=True)

    return expected


# ---- volume rendering


def ray_args(rng: torch.Generator, size: Size) -> Args:
    """Batched samples [R, n]."""
    shape = batch(rng, size)
    edges = rand(rng, shape[0], shape[1] + 1, high=0.3).cumsum(-1)
    return {
        "t_start": edges[:, :-1].contiguous(),
        "t_end": edges[:, 1:].contiguous(),
        "density": rand(rng, *shape, high=5),
        "prefix": rand(rng, *shape),
    }


def sample_args(rng: torch.Generator, size: Size) -> Args:
    """Packed samples [B]."""
    extra = {"density": rand(rng, size.samples, high=5), "prefix": rand(rng, size.samples)}
    return {**intervals(rng, size), **extra}


def alpha_of(make: Any, **more: Any) -> Any:
    def made(rng: torch.Generator, size: Size) -> Args:
        args = make(rng, size)
        rest = {name: args[name] for name in ("prefix", "first", "count") if name in args}
        return {"alpha": torch.rand(args["prefix"].shape, generator=rng), **rest, **more}

    return made


def opacity(t_start: Array, t_end: Array, density: Array) -> Array:
    require(all(part.dtype == np.float64 for part in (t_start, t_end, density)), "types")
    # An infinite density over an interval of length 0 counts as 0.
    return 1 - np.exp(-np.minimum(density, 1e300) * (t_end - t_start))


def weights_of(alpha: Array, prefix: Array) -> tuple[Array, Array, Array]:
    alike(alpha, prefix)
    through = scanned(np.multiply, True)(1 - alpha) * prefix
    return through * alpha, through, alpha


def density_weights(
    t_start: Array, t_end: Array, density: Array, prefix: Array, first: Array | None = None, count: Array | None = None
) -> tuple[Array, ...]:
    if first is not None:
        alike(t_start, t_end, density)
    return alpha_weights(opacity(t_start, t_end, density), prefix, first, count)


def alpha_weights(
    alpha: Array, prefix: Array, first: Array | None = None, count: Array | None = None
) -> tuple[Array, ...]:
    if first is None or count is None:
        require(alpha.ndim >= 1, "samples")
        return weights_of(alpha, prefix)
    require(alpha.ndim == 1, "packed samples are flat")
    weights, through, _ = by_ray(weights_of, first, count, alpha, prefix, gaps=True)
    return weights, through, alpha


def visible_of(weights: Any) -> Any:
    """The property of visibility, with room for rounding at the thresholds. NaN counts as visible."""

    @careful
    def holds(args: Args, result: Tensor) -> str:
        args = dict(args)
        stop, faint = args.pop("stop"), args.pop("faint")
        _, through, alpha = weights(**{name: plain(value) for name, value in args.items()})
        if result.shape != through.shape or result.dtype != torch.bool:
            return f"{result.dtype} of shape {list(result.shape)}"
        if not moderate(args):
            return ""
        seen = ~(through < stop) & (~(alpha < faint) if faint > 0 else True)
        close = (np.abs(through - stop) < 1e-3 * max(stop, 1e-3)) | (np.abs(alpha - faint) < 1e-3 * max(faint, 1e-3))
        return "" if (close | (plain(result) == seen)).all() else "the wrong samples are visible"

    return holds


def run_packed(function: Any, **fixed: Any) -> Any:
    return lambda first, count, **args: function(**args, **fixed, pack=Pack(first, count))


def accumulate_args(rng: torch.Generator, size: Size) -> Args:
    return {"weights": rand(rng, *batch(rng, size)), "values": rand(rng, *batch(rng, size), 3)}


def accumulate_packed_args(rng: torch.Generator, size: Size) -> Args:
    rows = {"weights": rand(rng, size.samples), "values": rand(rng, size.samples, 3)}
    return {**rows, **packed_rays(rng, size)}


def summed(weights: Array, values: Array) -> Array:
    require(values.shape[:-1] == weights.shape and weights.ndim, "values")
    return (weights[..., None] * values).sum(-2)


def summed_packed(weights: Array, values: Array, first: Array, count: Array) -> Array:
    require(weights.ndim == 1 and values.ndim == 2 and len(values) == len(weights), "values")
    return sums_by_ray(weights[:, None] * values, first, count)


def rendering_args(rng: torch.Generator, size: Size) -> Args:
    """The field returns `rgb` and `opaque`, so that wrong results of a callback are tried too."""
    return {
        **intervals(rng, size),
        "rgb": rand(rng, size.samples, 3),
        "opaque": rand(rng, size.samples),
        "background": rand(rng, size.rays, 3),
    }


def run_rendering(kind: str) -> Any:
    def run(first: Tensor, count: Tensor, rgb: Tensor, opaque: Tensor, **args: Tensor) -> Any:
        return volume.rendering(**args, pack=Pack(first, count), **{kind: lambda *_: (rgb, opaque)})

    return run


def rendered(kind: str) -> Any:
    def expected(
        t_start: Array, t_end: Array, first: Array, count: Array, rgb: Array, opaque: Array, background: Array
    ) -> Any:
        alike(t_start, t_end)
        require(background.shape in ((3,), (len(first), 3)), "background")
        if not len(t_start):
            rgb, opaque = np.zeros((0, 3)), t_start  # the field is not called
        require(rgb.shape == (*t_start.shape, 3), "colours")
        alike(t_start, opaque)
        alpha = opacity(t_start, t_end, opaque) if kind == "rgb_sigma_fn" else opaque
        alike(alpha, t_start)
        weights, through, _ = alpha_weights(alpha, np.ones_like(alpha), first, count)
        middle = (t_start + t_end)[:, None] / 2
        colour, depth, total = (
            summed_packed(weights, values, first, count) for values in (rgb, middle, np.ones_like(middle))
        )
        depth = depth / np.maximum(total, np.finfo(np.float32).eps)
        found = (colour + background * (1 - total), total, depth, weights, through, alpha, rgb)
        return (*found, opaque) if kind == "rgb_sigma_fn" else found

    return expected


# ---- losses


def distortion(weights: Array, t_starts: Array, t_ends: Array) -> Array:
    alike(weights, t_starts, t_ends)
    require(weights.ndim, "a single number")
    middle, length = (t_starts + t_ends) / 2, t_ends - t_starts
    require(np.isnan(middle).any() or (np.diff(middle) >= 0).all() or not len(middle), "intervals must ascend")
    apart = np.abs(middle[..., :, None] - middle[..., None, :])
    return (weights[..., :, None] * weights[..., None, :] * apart).sum((-1, -2)) + (weights**2 * length / 3).sum(-1)


def distortion_args(rng: torch.Generator, size: Size) -> Args:
    args = ray_args(rng, size)
    return {"weights": args["density"], "t_starts": args["t_start"], "t_ends": args["t_end"]}


def distortion_packed_args(rng: torch.Generator, size: Size) -> Args:
    pack = packed_rays(rng, size)
    edges = rand(rng, size.samples + 1, low=0.01, high=0.3).cumsum(0)
    return {"weights": rand(rng, size.samples), "t_starts": edges[:-1].clone(), "t_ends": edges[1:].clone(), **pack}


def ascending(expected: Any) -> Any:
    """The property of the loss; nothing is promised where intervals do not ascend along a ray."""
    plainly = equals(expected)

    @careful
    def holds(args: Args, result: Tensor) -> str:
        bad = plainly(args, result)
        return (
            "" if "must ascend" in bad and bool(torch.isfinite(result).all() | ~torch.tensor(moderate(args))) else bad
        )

    return holds


def distortion_packed(weights: Array, t_starts: Array, t_ends: Array, first: Array, count: Array) -> Array:
    by_ray(lambda column: column, first, count, weights)
    alike(weights, t_starts, t_ends)
    rays = [slice(f, f + c) if c else slice(0, 0) for f, c in zip(first, count, strict=True)]
    return np.array([distortion(weights[r], t_starts[r], t_ends[r]) for r in rays]).reshape(len(first))


THREE = ("t_start", "t_end", "density")
FOUR = (*THREE, "prefix")
PLACES = ("first", "count")


def _volume_cases() -> list[Case]:
    found = []
    # Distances of batched rays may be the same for all rays, so their shapes may broadcast.
    for label, make, run in (("batched", ray_args, lambda f: f), ("packed", sample_args, run_packed)):
        density = only(make, *FOUR, *PLACES)
        alpha, both = alpha_of(make), {"stop": 1e-2, "faint": 1e-2}
        at = f"{TOOLS}.volume"
        found += [
            Case(
                (f"{at}.transmittance_from_density",),
                density,
                run(volume.transmittance_from_density),
                holds=equals(lambda **args: density_weights(**args)[1]),
                label=label,
            ),
            Case(
                (f"{at}.weights_from_density",),
                density,
                run(volume.weights_from_density),
                FOUR,
                holds=equals(density_weights),
                label=label,
            ),
            Case(
                (f"{at}.transmittance_from_alpha",),
                alpha,
                run(volume.transmittance_from_alpha),
                holds=equals(lambda **args: alpha_weights(**args)[1]),
                label=label,
            ),
            Case(
                (f"{at}.weights_from_alpha",),
                alpha,
                run(volume.weights_from_alpha),
                ("alpha", "prefix"),
                holds=equals(alpha_weights),
                label=label,
            ),
            Case(
                (f"{at}.visible_from_density",),
                only(make, *FOUR, *PLACES, **both),
                run(volume.visible_from_density),
                holds=visible_of(density_weights),
                label=label,
            ),
            Case(
                (f"{at}.visible_from_alpha",),
                alpha_of(make, **both),
                run(volume.visible_from_alpha),
                holds=visible_of(alpha_weights),
                label=label,
            ),
        ]
    return found


CASES = [
    *(
        Case(
            (f"{TOOLS}.scan.{run.__name__}",),
            lambda rng, size: {"values": rand(rng, *batch(rng, size), low=0.5, high=1.5)},
            lambda values, run=run, exclusive=exclusive: run(values, exclusive=exclusive),
            holds=equals(scanned(function, exclusive)),
            label=f"batched, {exclusive=}",
        )
        for run, function in ((scan.running_sum, np.add), (scan.running_product, np.multiply))
        for exclusive in (False, True)
    ),
    *(
        Case(
            (f"{TOOLS}.scan.{run.__name__}",),
            scan_args,
            run_packed(run, exclusive=True),
            ("values",),
            holds=equals(scanned_rays(function, True)),
            label="packed",
        )
        for run, function in ((scan.running_sum, np.add), (scan.running_product, np.multiply))
    ),
    Case((f"{TOOLS}.volume.alphas",), only(ray_args, *THREE), volume.alphas, holds=equals(opacity)),
    *_volume_cases(),
    Case(
        (f"{TOOLS}.volume.accumulate",),
        accumulate_args,
        volume.accumulate,
        ("weights", "values"),
        holds=equals(summed),
        label="batched",
    ),
    Case(
        (f"{TOOLS}.volume.accumulate",),
        accumulate_packed_args,
        run_packed(volume.accumulate),
        ("weights", "values"),
        holds=equals(summed_packed),
        label="packed",
    ),
    *(
        Case(
            (f"{TOOLS}.volume.rendering",),
            rendering_args,
            run_rendering(kind),
            ("rgb", "opaque", "background"),
            holds=equals(rendered(kind)),
            label=kind,
        )
        for kind in ("rgb_sigma_fn", "rgb_alpha_fn")
    ),
    Case(
        (f"{TOOLS}.losses.distortion_loss",),
        distortion_args,
        losses.distortion_loss,
        ("weights", "t_starts", "t_ends"),
        holds=ascending(distortion),
        label="batched",
    ),
    Case(
        (f"{TOOLS}.losses.distortion_loss",),
        distortion_packed_args,
        run_packed(losses.distortion_loss),
        ("weights", "t_starts", "t_ends"),
        holds=ascending(distortion_packed),
        label="packed",
    ),
]

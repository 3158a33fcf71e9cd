"""Fuzz cases of `raymine.toolkit`: boxes, contraction, lenses, scans, volume rendering and losses.

The cases of samplers are in `fuzz_sampling`; `CASES` has both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.toolkit import boxes, contraction, lenses, losses, scan, volume
from raymine.toolkit.pack import Pack
from support import fuzz_sampling
from support.fuzz import Args, Case, Size
from support.fuzz_expect import Array, alike, by_ray, careful, equals, moderate, plain, require, sums_by_ray
from support.fuzz_kernels import intervals, packed_rays, rand

TOOLS = "raymine.toolkit"

# ---- boxes


def box_args(rng: torch.Generator, size: Size) -> Args:
    low = rand(rng, 4, 3, low=-1.0, high=-0.2)
    return {
        "origins": rand(rng, size.rays, 3, low=-2, high=2),
        "directions": rand(rng, size.rays, 3, low=-1),
        "boxes": torch.cat((low, low + rand(rng, 4, 3, low=0.3, high=1.5)), 1),
        "near": 0.1,
        "far": 9.5,
        "miss": -7.0,
    }


def crossed(origins: Array, directions: Array, boxes: Array, near: float, far: float, miss: float) -> Any:
    require(origins.shape == directions.shape == (len(origins), 3) and boxes.shape == (len(boxes), 6), "shapes")
    t_near, t_far = (np.full((len(origins), len(boxes)), miss, dtype=np.float64) for _ in range(2))
    hit = np.zeros((len(origins), len(boxes)), dtype=bool)
    for r, (o, d) in enumerate(zip(origins, directions, strict=True)):
        for m, box in enumerate(boxes):
            entry, leave, proper = float(near), float(far), d.any() and not np.isnan([*o, *d]).any()
            for axis in range(3):
                low, high = box[axis], box[3 + axis]
                if d[axis] == 0:
                    proper = proper and low <= o[axis] <= high
                else:
                    ends = sorted(((low - o[axis]) / d[axis], (high - o[axis]) / d[axis]))
                    entry, leave = max(entry, ends[0]), min(leave, ends[1])
                proper = proper and low <= high
            if entry <= leave and proper:
                t_near[r, m], t_far[r, m], hit[r, m] = entry, leave, True
    return t_near, t_far, hit


# ---- contraction


def norm_of(points: Array, norm: str) -> Array:
    return np.linalg.norm(points, 2 if norm == "l2" else np.inf, -1, keepdims=True)


def squash(positions: Array, norm: str = "inf") -> Array:
    require(positions.ndim and positions.shape[-1] and positions.dtype == np.float64, "points")
    flat = positions.reshape(-1, positions.shape[-1])
    # A point at infinity lies on the boundary, in the direction of its infinite coordinates.
    endless = np.isinf(flat)
    far = endless.any(-1, keepdims=True) & ~np.isnan(flat).any(-1, keepdims=True)
    flat = np.where(far, np.where(endless, np.sign(flat) * 1e30, 0.0), flat)
    size = np.maximum(norm_of(flat, norm), 1.0)
    return ((2 - 1 / size) * flat / size).reshape(positions.shape)


@careful
def same_point_squashed(args: Args, result: Tensor) -> str:
    """Contracting the result gives the argument again; outside of the ball it is infinite."""
    points, norm = plain(args["squashed"]), args["norm"]
    if not moderate(args) or not points.size:
        return "" if result.shape == points.shape else "shape"
    found = plain(result)
    outside = (norm_of(points.reshape(-1, points.shape[-1]), norm) >= 2).reshape(*points.shape[:-1], 1)
    if not np.isfinite(found[np.broadcast_to(~outside, found.shape)]).all():
        return "a point inside the ball is not finite"
    if not (np.isinf(found) == (outside & (points != 0))).all():
        return "a point outside of the ball is not infinite"
    off = np.abs(squash(np.where(outside, 0.0, found), norm) - np.where(outside, 0.0, points))
    return "" if not off.size or off.max() < 2e-3 else f"the contracted result differs by {off.max():.3g}"


def cube_args(rng: torch.Generator, size: Size) -> Args:
    return {
        "positions": rand(rng, size.samples, 3, low=-4, high=4),
        "low": torch.tensor([-1.0, -0.5, -2.0]),
        "high": torch.tensor([1.0, 0.7, 0.5]),
    }


def in_cube(positions: Array, low: Array, high: Array) -> Array:
    require(low.shape == high.shape == positions.shape[-1:], "the box")
    return squash((positions - (low + high) / 2) / ((high - low) / 2)) * 0.25 + 0.5


@careful
def same_place(args: Args, result: Tensor) -> str:
    """The result is the point that `to_unit_cube` maps to the argument."""
    cube, low, high = (plain(args[name]) for name in ("cube", "low", "high"))
    if not moderate(args) or not cube.size:
        return "" if result.shape == cube.shape else "shape"
    inside = (np.abs(cube - 0.5).max(-1) < 0.49) & (high != low).all()
    off = np.abs(in_cube(plain(result)[inside], low, high) - cube[inside])
    return "" if not off.size or off.max() < 2e-3 else f"the place of the result differs by {off.max():.3g}"


# ---- lenses


def lens_args(rng: torch.Generator, size: Size, most: int = 8) -> Args:
    return {
        "points": rand(rng, size.samples, 2, low=-0.5, high=0.5),
        "coefficients": rand(rng, most, low=-0.03, high=0.03),
    }


def lens_each_args(rng: torch.Generator, size: Size) -> Args:
    return {"points": rand(rng, size.samples, 2), "coefficients": rand(rng, size.samples, 8, low=-0.03, high=0.03)}


def distorted(points: Array, coefficients: Array) -> Array:
    require(points.ndim and points.shape[-1] == 2 and coefficients.shape[-1] in lenses.LENGTHS, "shapes")
    shape = torch.broadcast_shapes(points.shape[:-1], coefficients.shape[:-1])
    k = np.zeros((*shape, 12))
    k[..., : coefficients.shape[-1]] = coefficients
    k1, k2, p1, p2, k3, k4, k5, k6, s1, s2, s3, s4 = np.moveaxis(k, -1, 0)
    x, y = points[..., 0], points[..., 1]
    r2 = x**2 + y**2
    q = (1 + k1 * r2 + k2 * r2**2 + k3 * r2**3) / (1 + k4 * r2 + k5 * r2**2 + k6 * r2**3)
    u = x * q + 2 * p1 * x * y + p2 * (r2 + 2 * x**2) + s1 * r2 + s2 * r2**2
    v = y * q + 2 * p2 * x * y + p1 * (r2 + 2 * y**2) + s3 * r2 + s4 * r2**2
    return np.stack((u, v), -1)


def fisheye(points: Array, coefficients: Array) -> Array:
    require(points.ndim and points.shape[-1] == 2 and coefficients.shape[-1:] == (4,), "shapes")
    r = np.maximum(np.linalg.norm(points, axis=-1), 1e-150)
    angle = np.arctan(r)
    return points * (angle * (1 + sum(coefficients[..., i] * angle ** (2 * i + 2) for i in range(4))) / r)[..., None]


def distorts_back(distort: Any) -> Any:
    """Distorting the result gives the argument again, for points near the axis and lenses that do not fold over."""

    @careful
    def holds(args: Args, result: Tensor) -> str:
        points, coefficients = plain(args["points"]), plain(args["coefficients"])
        shape = distort(points, coefficients).shape
        if result.shape != shape:
            return f"shape {list(result.shape)} instead of {list(shape)}"
        mild = moderate(args) and (np.abs(coefficients) < 0.1).all() and args["iterations"] >= 10
        if not mild or not points.size or args.get("tolerance", 0.0) > 0.1:
            return ""
        near = (np.abs(np.broadcast_to(points, shape)) < 0.75).all(-1)
        off = np.abs(distort(plain(result), coefficients) - points)[near]
        limit = 2e-2 if result.dtype == torch.float16 else 1e-4
        return "" if not off.size or off.max() < limit else f"the distorted result differs by {off.max():.3g}"

    return holds


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


def only(make: Any, *names: str, **more: Any) -> Any:
    """Some of the arguments that `make` makes, and plain numbers."""
    return lambda rng, size: {**{name: value for name, value in make(rng, size).items() if name in names}, **more}


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
    Case(
        (f"{TOOLS}.boxes.intersect",),
        box_args,
        boxes.intersect,
        ("origins", "directions", "boxes"),
        holds=equals(crossed),
    ),
    *(
        Case(
            (f"{TOOLS}.contraction.contract",),
            lambda rng, size, norm=norm: {"positions": rand(rng, size.samples, 3, low=-4, high=4), "norm": norm},
            contraction.contract,
            ("positions",),
            holds=equals(squash),
            label=norm,
        )
        for norm in ("l2", "inf")
    ),
    *(
        Case(
            (f"{TOOLS}.contraction.uncontract",),
            lambda rng, size, norm=norm: {"squashed": rand(rng, size.samples, 3, low=-1.1, high=1.1), "norm": norm},
            contraction.uncontract,
            ("squashed",),
            holds=same_point_squashed,
            label=norm,
        )
        for norm in ("l2", "inf")
    ),
    Case(
        (f"{TOOLS}.contraction.to_unit_cube",),
        cube_args,
        contraction.to_unit_cube,
        ("positions", "low", "high"),
        holds=equals(in_cube),
    ),
    Case(
        (f"{TOOLS}.contraction.from_unit_cube",),
        lambda rng, size: {"cube": rand(rng, size.samples, 3), **only(cube_args, "low", "high")(rng, size)},
        contraction.from_unit_cube,
        ("cube", "low", "high"),
        holds=same_place,
    ),
    Case((f"{TOOLS}.lenses.distort",), lens_args, lenses.distort, holds=equals(distorted)),
    Case(
        (f"{TOOLS}.lenses.distort",),
        lens_each_args,
        lenses.distort,
        holds=equals(distorted),
        label="a lens for each point",
    ),
    Case(
        (f"{TOOLS}.lenses.undistort",),
        lambda rng, size: {**lens_args(rng, size), "iterations": 10, "tolerance": 1e-6},
        lenses.undistort,
        ("points", "coefficients"),
        holds=distorts_back(distorted),
    ),
    Case(
        (f"{TOOLS}.lenses.distort_fisheye",),
        lambda rng, size: lens_args(rng, size, 4),
        lenses.distort_fisheye,
        ("points", "coefficients"),
        holds=equals(fisheye),
    ),
    Case(
        (f"{TOOLS}.lenses.undistort_fisheye",),
        lambda rng, size: {**lens_args(rng, size, 4), "iterations": 10},
        lenses.undistort_fisheye,
        ("points", "coefficients"),
        holds=distorts_back(fisheye),
    ),
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
    *fuzz_sampling.CASES,
]

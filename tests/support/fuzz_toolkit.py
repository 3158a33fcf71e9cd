"""Fuzz cases of `raymine.toolkit`: boxes, contraction and lenses.

The cases of volume rendering are in `fuzz_volume`, those of samplers in `fuzz_importance`, `fuzz_proposal` and
`fuzz_occupancy`; `CASES` has all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.toolkit import boxes, contraction, lenses
from support import fuzz_importance, fuzz_occupancy, fuzz_proposal, fuzz_volume
from support.fuzz import Args, Case, Size
from support.fuzz_arguments import only, rand
from support.fuzz_expect import Array, careful, equals, moderate, plain, require

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
    *fuzz_volume.CASES,
    *fuzz_importance.CASES,
    *fuzz_proposal.CASES,
    *fuzz_occupancy.CASES,
]

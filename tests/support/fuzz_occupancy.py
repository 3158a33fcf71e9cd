"""Fuzz cases of the occupancy grids of `raymine.toolkit`."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.kernels.packed import Samples
from raymine.kernels.traverse.op import Grids, Stride
from raymine.toolkit import occupancy, occupancy_update
from support.fuzz import USUAL, Args, Case, Size
from support.fuzz_arguments import intervals, rand
from support.fuzz_expect import Array, by_ray, careful, equals, moderate, plain, require
from support.fuzz_kernels_rays import traverse_args

GRID = "raymine.toolkit.occupancy"
SIDES = (4, 3, 2)
CELLS = 24
LEVELS = 2
BOX = torch.tensor([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0])


def estimator(rng_seed: int = 7) -> occupancy.OccupancyEstimator:
    """A grid of which some cells are occupied and some are excluded."""
    torch.manual_seed(rng_seed)
    made = occupancy.OccupancyEstimator(BOX, SIDES, LEVELS)
    made.occupancies.copy_(torch.rand(LEVELS * CELLS) - 0.2)
    made.binaries = (made.occupancies > 0.3).view(LEVELS, *SIDES)
    return made


# ---- sampling


def ray_args(rng: torch.Generator, size: Size) -> Args:
    return {
        "origins": rand(rng, size.rays, 3, low=-2, high=2),
        "directions": rand(rng, size.rays, 3, low=-1),
        "near": 0.1,
        "far": 9.0,
        "t_min": torch.full((size.rays,), 0.2),
        "t_max": torch.full((size.rays,), 8.0),
        "step": 0.1,
        "early_stop": 0.05,
        "alpha_threshold": 0.02,
        "cone_angle": 0.01,
    }


def density_at(t_start: Tensor, t_end: Tensor, ray_id: Tensor) -> Tensor:
    """A density that does not depend on how samples are placed by much: smooth along the ray."""
    return 1.5 + t_start.float().sin() + 0.1 * ray_id


def run_sampling(**args: Any) -> Samples:
    return estimator().sampling(**args, density_fn=density_at)


def bounds_of(origins: Array, near: float, far: float, t_min: Array, t_max: Array) -> Any:
    require(origins.ndim == 2 and origins.dtype == np.float64, "origins")
    require(t_min.shape == t_max.shape == origins.shape[:1], "shapes")
    require(t_min.dtype.kind == t_max.dtype.kind == "f", "types")
    return np.maximum(t_min, near), np.minimum(t_max, far)


def place_args(rng: torch.Generator, size: Size) -> Args:
    args = traverse_args(rng, size)
    return {name: args[name] for name in args if name not in ("limit", "mask")}


def run_place(
    near: Tensor, far: Tensor, binaries: Tensor, aabbs: Tensor, step_size: float, cone_angle: float, **rays: Tensor
) -> Samples:
    return occupancy.place_samples(
        **rays, bounds=(near, far), grids=Grids(binaries, aabbs), stride=Stride(step_size, cone_angle)
    )


def visible_args(rng: torch.Generator, size: Size) -> Args:
    """The callback returns `value`, so that wrong results of a callback are tried too."""
    rows = intervals(rng, size)
    ray = torch.repeat_interleave(torch.arange(size.rays), rows["count"])
    return {**rows, "ray_id": ray, "value": rand(rng, size.samples), "early_stop": 0.05, "faint": 0.1}


def run_visible(alpha: bool) -> Any:
    def run(value: Tensor, early_stop: float, faint: float, **rows: Tensor) -> Any:
        return occupancy.keep_visible(Samples(**rows), lambda *_: value, early_stop, faint, alpha=alpha)

    return run


def in_occupied_cells(samples: Samples, rays: Args, binaries: Array, boxes: Array, room: float) -> str:
    """Samples follow one another ray by ray, and the midpoint of each lies in an occupied cell, up to `room`."""
    first, count = plain(samples.first), plain(samples.count)
    by_ray(lambda column: column, first, count, plain(samples.t_start))
    ray = np.repeat(np.arange(len(count)), count)
    if not np.array_equal(plain(samples.ray_id), ray):
        return "the rays of the samples are wrong"
    o, d, near, far = (plain(rays[name]) for name in ("origins", "directions", "near", "far"))
    middle = plain(samples.t_start + samples.t_end) / 2
    at, slack = o[ray] + middle[:, None] * d[ray], room * (1 + np.abs(middle))
    if not ((middle >= near[ray] - slack) & (middle <= far[ray] + slack)).all():
        return "a midpoint lies before near or behind far"
    found = np.zeros(len(middle), dtype=bool)
    sides = np.array(binaries.shape[1:])
    for full, box in zip(binaries, boxes, strict=True):
        for corner in itertools.product((-1, 1), repeat=3):
            shifted = at + np.array(corner) * (slack * np.abs(d[ray]).max(-1, initial=1.0))[:, None]
            cell = np.floor((shifted - box[:3]) / (box[3:] - box[:3]) * sides)
            inside = ((cell >= 0) & (cell < sides)).all(-1)
            x, y, z = np.where(inside[:, None], cell, 0).astype(np.int64).T
            found |= inside & full[x, y, z]
    return "" if found.all() else "a midpoint lies in no occupied cell"


@careful
def placed(args: Args, result: Samples) -> str:
    """The property of `place_samples`, and of an estimator whose grid has other names."""
    if not moderate(args):
        return ""
    own = estimator()
    binaries = plain(args.get("binaries", own.binaries)).astype(bool)
    boxes = plain(args["aabbs"]) if "aabbs" in args else plain(torch.stack((BOX, 2 * BOX)))
    rays, n = dict(args), len(args["origins"])
    if "t_min" in args:
        rays["near"] = torch.maximum(args["t_min"], torch.full((n,), float(args["near"])))
        rays["far"] = torch.minimum(args["t_max"], torch.full((n,), float(args["far"])))
    half = any(isinstance(value, Tensor) and value.dtype == torch.float16 for value in args.values())
    return in_occupied_cells(result, rays, binaries, boxes, 2e-2 if half else 1e-3)


# ---- cells


def cell_args(rng: torch.Generator, _: Size) -> Args:
    values = rand(rng, LEVELS * CELLS, low=-0.2)
    return {"values": values, "occupied": (values > 0.3).view(LEVELS, *SIDES)}


@careful
def every_cell(args: Args, result: list[Tensor]) -> str:
    values = plain(args["values"]).reshape(len(args["occupied"]), -1)
    require(values.shape[1] == args["occupied"][0].numel(), "occupied")
    wanted = [np.flatnonzero(level >= 0) for level in values]
    same = len(result) == len(wanted) and all(np.array_equal(plain(a), b) for a, b in zip(result, wanted, strict=True))
    return "" if same else "other cells than those that are not excluded"


@careful
def some_cells(args: Args, result: list[Tensor]) -> str:
    occupied = plain(args["occupied"]).reshape(len(args["occupied"]), -1).astype(bool)
    values = plain(args["values"]).reshape(occupied.shape)
    for level, full, cells in zip(values, occupied, result, strict=True):
        if not ((cells >= 0) & (cells < len(level))).all():
            return "a cell does not exist"
        if len(cells) > 2 * args["some"]:
            return "too many cells"
        if not ((level[plain(cells)] >= 0) | full[plain(cells)]).all():
            return "an excluded cell is visited"
    return ""


def listed_args(rng: torch.Generator, size: Size) -> Args:
    return {
        "cells": torch.randint(CELLS, (size.samples,), generator=rng),
        "boxes": torch.stack((BOX, 2 * BOX)),
        "x": SIDES[0],
        "y": SIDES[1],
        "z": SIDES[2],
    }


def corners(cells: Array, sides: tuple[int, ...]) -> Array:
    require(cells.dtype == np.int64 and cells.ndim == 1 and min(sides) > 0, "cells")
    require(((cells >= 0) & (cells < np.prod(sides))).all(), "a cell does not exist")
    return np.stack(np.unravel_index(cells, sides), -1).astype(np.int64).reshape(-1, 3)


@careful
def in_their_cells(args: Args, result: Any) -> str:
    sides = (args["x"], args["y"], args["z"])
    boxes = plain(args["boxes"])
    require(boxes.shape == (2, 6) and boxes.dtype == np.float64, "boxes")
    for (cells, points), box in zip(result, boxes, strict=True):
        unit = corners(plain(cells), sides) / sides
        ends = [box[:3] + (unit + step) * (box[3:] - box[:3]) for step in (0, 1 / np.array(sides))]
        if not moderate(args):
            continue
        low, high = np.minimum(*ends), np.maximum(*ends)
        room = 1e-3 * (1 + np.abs(box).max())
        inside = (plain(points) >= low - room) & (plain(points) <= high + room)
        if points.shape != (len(cells), 3) or not inside.all():
            return "a point lies outside of its cell"
    return ""


def run_points(cells: Tensor, boxes: Tensor, x: int, y: int, z: int) -> Any:
    return list(occupancy.random_points([cells, cells], torch.Size((x, y, z)), boxes))


def visit_args(rng: torch.Generator, size: Size) -> Args:
    """The field returns `found`, so that wrong results of a callback are tried too."""
    return {
        "values": rand(rng, CELLS, low=-0.2),
        "cells": torch.randint(CELLS, (size.samples,), generator=rng),
        "points": rand(rng, size.samples, 3),
        "found": rand(rng, size.samples),
        "decay": 0.9,
    }


def run_update(values: Tensor, cells: Tensor, points: Tensor, found: Tensor, decay: float) -> None:
    visits = [occupancy_update.Visit(cells, points)]
    grid = values if values.ndim != 1 else values[None]
    occupancy_update.update_values(grid, visits, lambda _: found, decay, skip_nan=True)
    return values.clone()


def updated(before: Args, values: Array, cells: Array, points: Array, found: Array, decay: float) -> Array:
    old = before["values"]
    require(
        values.ndim <= 2 and cells.ndim == 1 and cells.dtype == np.int64 and points.shape == (len(cells), 3), "shapes"
    )
    require(((cells >= 0) & (cells < old.size)).all(), "a cell does not exist")
    require(0 <= decay <= 1 and (not len(cells) or found.size == len(cells)), "found")
    new, flat = old.reshape(-1).copy(), found.reshape(-1)
    for cell in set(cells.tolist()):
        seen = [float(x) for x in flat[cells == cell] if x == x]
        if old.reshape(-1)[cell] >= 0 and seen:
            new[cell] = max(old.reshape(-1)[cell] * decay, *(min(x, occupancy_update.LARGEST) for x in seen), -np.inf)
    return new.reshape(old.shape)


class Remembering:
    """Runs a callable that changes `values` in place, and compares with the brute force on the values before."""

    def __init__(self, run: Any, expected: Any) -> None:
        self._run, self._expected, self.before = run, expected, {}

    def run(self, **args: Any) -> Any:
        self.before = {"values": plain(args["values"]) if args["values"].device.type == "cpu" else None}
        return self._run(**args)

    def holds(self, args: Args, result: Any) -> str:
        return equals(lambda **rest: self._expected(self.before, **rest))(args, result)


UPDATE = Remembering(run_update, updated)


def grid_update_args(*_: Any) -> Args:
    return {"step": 32, "threshold": 0.05, "ema_decay": 0.9, "warmup_steps": 64, "n": 16}


def run_grid_update(shape: tuple[int, ...] = (-1,), **args: Any) -> Any:
    made = estimator()
    before = made.occupancies.clone()
    made.update_every_n_steps(args.pop("step"), lambda x: (0.5 + 0.25 * x[:, 0]).reshape(shape), **args)
    return before, made.occupancies, made.binaries


@careful
def grid_updated(args: Args, result: Any) -> str:
    """In the x-th slab of a box, the field is between its values at the sides of the slab."""
    before, after, binaries = (plain(part) for part in result)
    if args["step"] % args["n"]:
        return "" if np.array_equal(before, after) else "a grid changed between its updates"
    slab = np.unravel_index(np.arange(CELLS), SIDES)[0]
    x = np.concatenate([scale * (2 * (slab[:, None] + (0, 1)) / SIDES[0] - 1) for scale in (1, 2)])
    low, high = np.maximum(before[:, None] * args["ema_decay"], 0.5 + 0.25 * x).T
    alive, changed = before >= 0, after != before
    if (changed & ~alive).any():
        return "an excluded cell changed"
    sound = (after >= low - 1e-5) & (after <= high + 1e-5)
    if not (sound | ~changed).all() or (args["step"] < args["warmup_steps"] and not (sound | ~alive).all()):
        return "a cell has a value that the field does not have in it"
    limit = min(args["threshold"], after[alive].mean())
    same = (binaries.reshape(-1) == (after > limit)) | (np.abs(after - limit) < 1e-5)
    return "" if same.all() else "other cells are occupied than those above the limit"


def camera_args(rng: torch.Generator, _: Size) -> Args:
    K = torch.tensor([[20.0, 0, 8], [0, 20.0, 6], [0, 0, 1]]).expand(2, 3, 3).contiguous()
    pose = torch.eye(4)[:3].expand(2, 3, 4).clone()
    pose[:, :, 3] = torch.tensor([[0.1, 0.2, -3.0], [0.3, -0.1, 0.05]])
    return {"K": K, "c2w": pose, "width": 16, "height": 12, "near_plane": 0.3, "chunk": 10}


def run_seen(K: Tensor, c2w: Tensor, width: int, height: int, near_plane: float, chunk: int) -> Tensor:
    boxes = torch.stack((BOX, 2 * BOX))
    return occupancy.seen_cells(torch.Size(SIDES), boxes, K, c2w, (width, height), near_plane, chunk)


def run_mark(**args: Any) -> Tensor:
    made = occupancy.OccupancyEstimator(BOX, SIDES, LEVELS)
    made.mark_invisible_cells(**args)
    return (made.occupancies >= 0) & made.binaries.view(-1)


@careful
def seen_by(args: Args, result: Tensor) -> str:
    K, c2w = plain(args["K"]), plain(args["c2w"])
    require(K.dtype.kind in "fi" and c2w.dtype.kind in "fi" and K.shape[1:] == (3, 3), "types")
    require(c2w.shape[1:] in ((3, 4), (4, 4)) and len(K) in (1, len(c2w)), "shapes")
    if result.shape != (LEVELS * CELLS,) or result.dtype != torch.bool:
        return f"{result.dtype} of shape {list(result.shape)}"
    if not moderate(args):
        return ""
    unit = np.stack(np.unravel_index(np.arange(CELLS), SIDES), -1) / (np.array(SIDES) - 1)
    points = np.concatenate([scale * (2 * unit - 1) for scale in (1, 2)])
    seen, close, near = (np.zeros(len(points), dtype=bool) for _ in range(3))
    for i, pose in enumerate(c2w):
        local = (points - pose[:3, 3]) @ pose[:3, :3]
        x, y, depth = (K[i % len(K)] @ local.T).reshape(3, -1)
        u, v = x / depth, y / depth
        inside = (depth >= 0) & (u >= 0) & (u < args["width"]) & (v >= 0) & (v < args["height"])
        seen |= inside & (depth >= args["near_plane"])
        near |= inside & (depth < args["near_plane"])
        ends = ((u, 0), (u, args["width"]), (v, 0), (v, args["height"]), (depth, args["near_plane"]), (depth, 0))
        close |= np.any([np.abs(value - end) < 1e-3 * (1 + abs(end)) for value, end in ends], 0) | ~np.isfinite(u + v)
    return "" if ((plain(result) == (seen & ~near)) | close).all() else "the wrong cells count as seen"


def nested(box: Array, levels: int) -> Array:
    require(box.shape == (6,) and box.dtype.kind in "fi" and levels >= 1, "box")
    centre, half = (box[:3] + box[3:]) / 2, (box[3:] - box[:3]) / 2
    return np.stack([np.concatenate((centre - half * 2.0**g, centre + half * 2.0**g)) for g in range(levels)])


@careful
def empty_grid(args: Args, result: Any) -> str:
    shape = (args["levels"], *(args["resolution"],) * 3)
    box, binaries, values = result
    require(args["box"].shape == (6,) and not args["box"].is_complex(), "box")
    sound = tuple(binaries.shape) == shape and values.numel() == np.prod(shape) and bool(binaries.all())
    return "" if sound and np.allclose(plain(box), plain(args["box"])) and not values.any() else "not a fresh grid"


def run_new(box: Tensor, resolution: int, levels: int) -> Any:
    made = occupancy.OccupancyEstimator(box, resolution, levels)
    return made.box, made.binaries, made.occupancies


@careful
def above_the_limit(args: Args, result: Tensor) -> str:
    values, counted = plain(args["values"]), plain(args.get("counted", args["values"] >= 0))
    require(values.dtype.kind in "fi" and values.ndim >= 1 and counted.shape == values.shape, "values")
    if result.shape != values.shape or result.dtype != torch.bool:
        return f"{result.dtype} of shape {list(result.shape)}"
    if not moderate(args):
        return ""
    number = np.maximum(counted.sum(-1, keepdims=True), 1)
    limit = np.minimum(np.where(counted, values, 0.0).sum(-1, keepdims=True) / number, args["threshold"])
    same = (plain(result) == (values > limit)) | (np.abs(values - limit) < 1e-3)
    return "" if same.all() else "other cells are above the limit"


def visits(values: Tensor, cells: Tensor, boxes: Tensor, decay: float) -> Tensor:
    torch.manual_seed(5)
    occupancy.visit(values, [cells, cells], torch.Size(SIDES), boxes, lambda x: 2 + 0 * x[:, 0], decay)
    return values.clone()


def visited(before: Args, values: Array, cells: Array, boxes: Array, decay: float) -> Array:
    require(boxes.shape == (LEVELS, 6) and boxes.dtype == np.float64 and 0 <= decay <= 1, "boxes")
    require(cells.ndim == 1 and cells.dtype == np.int64 and ((cells >= 0) & (cells < CELLS)).all(), "cells")
    new = before["values"].copy()
    require(new.shape == (LEVELS * CELLS,) and new.dtype == np.float64, "values")
    for level in range(LEVELS):
        at = level * CELLS + cells
        new[at] = np.where(new[at] >= 0, np.maximum(new[at] * decay, 2.0 if len(at) else 0.0), new[at])
    return new


VISIT = Remembering(visits, visited)

CASES = [
    # The traversal is compared with its reference by the cases of the ops.
    Case((f"{GRID}.OccupancyEstimator.sampling",), ray_args, run_sampling, holds=placed),
    Case(
        (f"{GRID}.OccupancyEstimator", f"{GRID}.grid_sides"),
        lambda *_: {"box": BOX.clone(), "resolution": 3, "levels": 2},
        run_new,
        holds=empty_grid,
        sizes=(USUAL,),
    ),
    *(
        Case(
            (f"{GRID}.OccupancyEstimator.update_every_n_steps",),
            lambda *_, warmup=warmup: {**grid_update_args(), "warmup_steps": warmup},
            run_grid_update,
            holds=grid_updated,
            sizes=(USUAL,),
            label=f"warmup {warmup}",
        )
        for warmup in (64, 2)
    ),
    Case((f"{GRID}.OccupancyEstimator.mark_invisible_cells",), camera_args, run_mark, holds=seen_by, sizes=(USUAL,)),
    Case((f"{GRID}.seen_cells",), camera_args, run_seen, holds=seen_by, sizes=(USUAL,)),
    Case(
        (f"{GRID}.ray_bounds",),
        lambda rng, size: {
            k: v for k, v in ray_args(rng, size).items() if k in ("origins", "near", "far", "t_min", "t_max")
        },
        occupancy.ray_bounds,
        holds=equals(bounds_of),
    ),
    Case((f"{GRID}.place_samples",), place_args, run_place, holds=placed),
    *(
        Case((f"{GRID}.keep_visible",), visible_args, run_visible(alpha), label=f"{alpha=}", close=1e-3)
        for alpha in (False, True)
    ),
    Case(
        (f"{GRID}.nested_boxes",),
        lambda *_: {"box": BOX.clone(), "levels": 3},
        occupancy.nested_boxes,
        holds=equals(nested),
        sizes=(USUAL,),
    ),
    Case(
        (f"{GRID}.cells_to_visit",),
        cell_args,
        lambda values, occupied: occupancy.cells_to_visit(values, occupied, True),
        holds=every_cell,
        label="every",
        sizes=(USUAL,),
    ),
    Case(
        (f"{GRID}.cells_to_visit",),
        lambda rng, size: {**cell_args(rng, size), "some": 6},
        lambda values, occupied, some: occupancy.cells_to_visit(values, occupied, False, some),
        holds=some_cells,
        label="some",
        sizes=(USUAL,),
    ),
    Case((f"{GRID}.random_points",), listed_args, run_points, holds=in_their_cells),
    Case(
        (f"{GRID}.visit",),
        lambda rng, size: {
            "values": rand(rng, LEVELS * CELLS, low=-0.2),
            "cells": torch.randint(CELLS, (size.samples,), generator=rng),
            "boxes": torch.stack((BOX, 2 * BOX)),
            "decay": 0.9,
        },
        VISIT.run,
        inplace=("values",),
        holds=VISIT.holds,
    ),
    Case(
        (f"{GRID}.occupied_cells",),
        lambda rng, size: {"values": rand(rng, size.samples, low=-0.2), "threshold": 0.3},
        occupancy.occupied_cells,
        holds=above_the_limit,
    ),
    Case(
        (f"{GRID}_update.above_limit",),
        lambda rng, size: {
            "values": rand(rng, size.rays, 7),
            "threshold": 0.3,
            "counted": rand(rng, size.rays, 7) > 0.3,
        },
        occupancy_update.above_limit,
        holds=above_the_limit,
    ),
    Case(
        (f"{GRID}_update.grid_coordinates",),
        lambda rng, size: {k: v for k, v in listed_args(rng, size).items() if k != "boxes"},
        lambda cells, x, y, z: occupancy.grid_coordinates(cells, (x, y, z)),
        holds=equals(lambda cells, x, y, z: corners(cells, (x, y, z))),
    ),
    Case((f"{GRID}_update.update_values",), visit_args, UPDATE.run, inplace=("values",), holds=UPDATE.holds),
]

"""Fuzz cases of the ops along rays: compositing, volume rendering, scans, marching and the traversal of grids."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.kernels import packed
from raymine.kernels.composite.op import composite, visible
from raymine.kernels.judge.op import Wanted, curve, fade_factor, judge
from raymine.kernels.march.op import Occupancy, Spacing, cell_of, march, pack_bits
from raymine.kernels.packed import Samples
from raymine.kernels.resample.op import resample
from raymine.kernels.scan.op import running_product, running_sum
from raymine.kernels.select.op import compact
from raymine.kernels.traverse.op import Crossings, Grids, Stride, traverse
from raymine.kernels.volume.op import volume
from support.fuzz import Args, Case, Size
from support.fuzz_arguments import intervals, packed_rays, rand, samples_of

OPS = "raymine.kernels"

# ---- composite, judge and volume


def composite_args(rng: torch.Generator, size: Size) -> Args:
    return {
        "density": rand(rng, size.samples, high=5.0),
        "colour": rand(rng, size.samples, 3),
        **intervals(rng, size),
        "background": rand(rng, size.rays, 3),
        "stop": 1e-4,
    }


def run_composite(
    density: Tensor, colour: Tensor, t_start: Tensor, t_end: Tensor, first: Tensor, count: Tensor, **rest: Any
) -> Any:
    return composite(density, colour, samples_of(t_start, t_end, first, count), **rest)


def visible_args(rng: torch.Generator, size: Size) -> Args:
    return {"density": rand(rng, size.samples, high=5.0), **intervals(rng, size), "stop": 1e-4, "faint": 1e-3}


def run_visible(density: Tensor, stop: float, faint: float, **rows: Tensor) -> Any:
    return visible(density, samples_of(**rows), stop, faint)


def judge_args(rng: torch.Generator, size: Size) -> Args:
    return {
        "colour": rand(rng, size.samples, 3, low=-2, high=2),
        "density": rand(rng, size.samples, low=-1, high=3),
        **intervals(rng, size),
        "wanted.colour": rand(rng, size.rays, 3),
        "wanted.background": rand(rng, size.rays, 3),
        "wanted.weight": rand(rng, size.rays),
        "delta": 0.1,
        "stop": 1e-4,
    }


def run_judge(colour: Tensor, density: Tensor, delta: float, stop: float, **rows: Tensor) -> Any:
    wanted = Wanted(*(rows.pop(f"wanted.{name}") for name in Wanted._fields))
    return judge(colour, density, samples_of(**rows), wanted, delta, stop)


def distance_args(rng: torch.Generator, size: Size) -> Args:
    return {"middle": rand(rng, size.samples, high=5.0), "fade": 1.0}


def volume_args(rng: torch.Generator, size: Size) -> Args:
    args = composite_args(rng, size)
    return {name: value for name, value in args.items() if name != "stop"}


def run_volume(density: Tensor, colour: Tensor, first: Tensor, count: Tensor, **rest: Any) -> Any:
    return volume(density, colour, pack=packed.Pack(first, count), **rest)


def resample_args(rng: torch.Generator, size: Size) -> Args:
    edges, cdfs = (rand(rng, size.rays, 9).sort(-1).values for _ in range(2))
    return {"edges": edges, "cdfs": cdfs, "offset": rand(rng, size.rays), "n": 5}


# ---- scan and select


def scan_args(rng: torch.Generator, size: Size) -> Args:
    return {"values": rand(rng, size.samples, 2, low=0.5, high=1.5), **packed_rays(rng, size)}


def compact_args(rng: torch.Generator, size: Size) -> Args:
    return {"keep": rand(rng, size.samples) > 0.5, "count": packed_rays(rng, size)["count"]}


# ---- march

RESOLUTION = 8


def march_args(rng: torch.Generator, size: Size) -> Args:
    occupied = rand(rng, 2, RESOLUTION, RESOLUTION, RESOLUTION) > 0.5
    grid = pack_bits(occupied, (-1.0, -1.0, -1.0), (1.0, 1.0, 1.0))
    return {
        "origins": rand(rng, size.rays, 3, low=-3, high=3),
        "directions": rand(rng, size.rays, 3, low=-1),
        "near": torch.full((size.rays,), 0.1),
        "far": torch.full((size.rays,), 20.0),
        "jitter": rand(rng, size.rays, low=-1),
        "bits": grid.bits,
        "blocks": grid.blocks,
        "resolution": RESOLUTION,
        "low": -1.0,
        "high": 1.0,
        "shortest": 0.05,
        "longest": 1.0,
        "cone": 0.01,
    }


def run_march(
    bits: Tensor, blocks: Tensor, resolution: int, low: float, high: float, shortest: float, longest: float,
    cone: float, **rays: Tensor,
) -> Any:  # fmt: skip
    grid = Occupancy(bits, blocks, resolution, (low, -1.0, -1.0), (high, 1.0, 1.0))
    return march(**rays, grid=grid, spacing=Spacing(shortest, longest, cone))


def between_near_and_far(args: Args, samples: Samples) -> str:
    middle = (samples.t_start + samples.t_end) / 2
    rays = samples.ray_id
    inside = (middle >= args["near"][rays] - 1e-4) & (middle <= args["far"][rays] + 1e-4)
    return "" if bool(inside.all()) else "an interval has its midpoint before near or behind far"


def cell_args(rng: torch.Generator, size: Size) -> Args:
    return {"points": rand(rng, size.samples, 3, low=-3, high=3)}


def run_cell_of(points: Tensor) -> Any:
    grid = pack_bits(torch.ones(2, 8, 8, 8, dtype=torch.bool), (-1.0, -1.0, -1.0), (1.0, 1.0, 1.0))
    return cell_of(points, grid)


def cells_exist(_: Args, result: Any) -> str:
    level, index, inside = result
    sound = bool(((level >= 0) & (level < 2) & (index >= 0) & (index < 512)).all())
    return "" if sound and inside.dtype == torch.bool else "a cell does not exist"


def run_pack_bits(occupied: Tensor, low: float) -> Any:
    return pack_bits(occupied, (low, -1.0, -1.0), (1.0, 1.0, 1.0))


def bits_hold(args: Args, grid: Occupancy) -> str:
    return "" if torch.equal(grid.cells.bool(), args["occupied"].flatten(1)) else "bits differ from the cells"


def cells_are_the_bits(args: Args, result: Any) -> str:
    expected = np.unpackbits(args["bits"].numpy(), axis=-1, bitorder="little")
    return "" if np.array_equal(result.numpy(), expected) else "the cells are not the bits"


# ---- traverse


def traverse_args(rng: torch.Generator, size: Size) -> Args:
    return {
        "origins": rand(rng, size.rays, 3, low=-2, high=2),
        "directions": rand(rng, size.rays, 3, low=-1),
        "near": torch.full((size.rays,), 0.1),
        "far": torch.full((size.rays,), 10.0),
        "binaries": rand(rng, 2, 4, 3, 5) > 0.5,
        "aabbs": torch.tensor([[-1.0, -1, -1, 1, 1, 1], [-2, -2, -2, 2, 2, 2]]),
        "step_size": 0.1,
        "cone_angle": 0.01,
        "limit": 0,
        "mask": torch.ones(size.rays, dtype=torch.bool),
    }


def run_traverse(
    near: Tensor, far: Tensor, binaries: Tensor, aabbs: Tensor, step_size: float, cone_angle: float, limit: int,
    **rest: Any,
) -> Any:  # fmt: skip
    return traverse(
        bounds=(near, far), grids=Grids(binaries, aabbs), stride=Stride(step_size, cone_angle, limit), **rest
    )


def crossed_args(rng: torch.Generator, size: Size) -> Args:
    args = traverse_args(rng, size)
    t_sorted = rand(rng, size.rays, 4, high=5).sort(-1).values
    index = torch.tensor([1, 0, 2, 3]).expand(size.rays, 4).contiguous()
    hits = torch.ones(size.rays, 2, dtype=torch.bool)
    kept = {name: args[name] for name in ("origins", "directions", "near", "far", "binaries", "aabbs")}
    return {**kept, "t_sorted": t_sorted, "t_indices": index, "hits": hits}


def run_crossed(t_sorted: Tensor, t_indices: Tensor, hits: Tensor, **rest: Any) -> Any:
    return run_traverse(step_size=0.1, cone_angle=0.0, limit=0, crossings=Crossings(t_sorted, t_indices, hits), **rest)


INFINITE = ("density one inf", "density all inf", "density one -inf", "density all -inf")
"""An infinite density is opaque, and the kernels give it gradient 0. Autograd of the reference multiplies 0 by inf."""

CASES = [
    Case(
        (f"{OPS}.composite.op.composite",),
        composite_args,
        run_composite,
        ("density", "colour", "background"),
        without=INFINITE,
    ),
    Case((f"{OPS}.composite.op.visible",), visible_args, run_visible),
    Case((f"{OPS}.volume.op.volume",), volume_args, run_volume, ("density", "colour", "background"), without=INFINITE),
    Case((f"{OPS}.resample.op.resample",), resample_args, resample),
    Case((f"{OPS}.judge.op.judge",), judge_args, run_judge, without=INFINITE),
    Case((f"{OPS}.judge.op.curve",), lambda rng, size: {"t": rand(rng, size.samples, high=5.0)}, curve, ("t",)),
    Case((f"{OPS}.judge.op.fade_factor",), distance_args, fade_factor),
    Case((f"{OPS}.scan.op.running_sum",), scan_args, running_sum, ("values",)),
    Case(
        (f"{OPS}.scan.op.running_sum",),
        scan_args,
        lambda **args: running_sum(**args, exclusive=True, reverse=True),
        ("values",),
        label="exclusive, reverse",
    ),
    Case((f"{OPS}.scan.op.running_product",), scan_args, running_product, ("values",)),
    Case((f"{OPS}.select.op.compact",), compact_args, compact),
    Case((f"{OPS}.march.op.march", f"{OPS}.march.spacing.too_many"), march_args, run_march),
    Case(
        (f"{OPS}.march.op.march",),
        march_args,
        run_march,
        holds=between_near_and_far,
        label="near and far",
    ),
    Case((f"{OPS}.march.reference.cell_of",), cell_args, run_cell_of, holds=cells_exist),
    Case(
        (f"{OPS}.march.occupancy.pack_bits",),
        lambda rng, _: {"occupied": rand(rng, 2, 8, 8, 8) > 0.5, "low": -1.0},
        run_pack_bits,
        holds=bits_hold,
    ),
    Case(
        (f"{OPS}.march.occupancy.Occupancy",),
        lambda rng, _: {
            "bits": torch.randint(0, 256, (2, 64), generator=rng, dtype=torch.uint8),
            "blocks": torch.ones(2, 1, dtype=torch.uint8),
            "resolution": 8,
            "low": -1.0,
        },
        lambda bits, blocks, resolution, low: Occupancy(bits, blocks, resolution, (low,) * 3, (1.0,) * 3).cells,
        holds=cells_are_the_bits,
    ),
    Case(
        (f"{OPS}.march.spacing.Spacing", f"{OPS}.march.spacing.Spacing.count_at"),
        lambda rng, size: {"t": rand(rng, size.samples), "shortest": 0.1, "longest": 1.0, "cone": 0.1},
        lambda t, **lengths: Spacing(**lengths).count_at(t),
        ("t",),
    ),
    Case(
        (f"{OPS}.march.spacing.Spacing.distance_at",),
        lambda rng, size: {"u": rand(rng, size.samples), "shortest": 0.1, "longest": 1.0, "cone": 0.1},
        lambda u, **lengths: Spacing(**lengths).distance_at(u),
        ("u",),
    ),
    Case((f"{OPS}.traverse.op.traverse",), traverse_args, run_traverse, close=1e-3),
    Case(
        (f"{OPS}.traverse.op.traverse",),
        crossed_args,
        run_crossed,
        label="crossings",
        close=1e-3,
        # These crossings are not those of the rays and boxes. So far away, rounding decides which cells are met.
        without=("origins huge", "directions huge", "aabbs huge"),
    ),
]

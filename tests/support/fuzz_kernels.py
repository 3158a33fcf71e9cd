"""Fuzz cases of the public callables of `kernels/*/op.py`, and of the modules that ops share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.kernels import activations, contraction, packed
from raymine.kernels.adam.op import Rates, update, update_rows
from raymine.kernels.composite.op import composite, visible
from raymine.kernels.harmonics.op import harmonics
from raymine.kernels.hash_grid.op import GridSpec, GrownSpec, encode, grown_scale
from raymine.kernels.judge.op import Wanted, judge
from raymine.kernels.march.op import Occupancy, Spacing, cell_of, march, pack_bits
from raymine.kernels.mlp.op import mlp, mlp_flat
from raymine.kernels.ngp_step.op import HIDDEN, WIDTH, Box, Network, infer, to_unit_cube, train
from raymine.kernels.packed import Samples
from raymine.kernels.philox.op import integers, uniform, words
from raymine.kernels.scan.op import running_product, running_sum
from raymine.kernels.select.op import compact
from raymine.kernels.traverse.op import Crossings, Grids, Stride, traverse
from raymine.kernels.volume.op import volume
from support.fuzz import USUAL, Args, Case, Size

OPS = "raymine.kernels"
SPEC = GridSpec(levels=3, features=4, log2_entries=8, base=4, finest=16)
"""The coarsest level is dense, the others are hashed."""


def rand(rng: torch.Generator, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(*shape, generator=rng)


def packed_rays(rng: torch.Generator, size: Size) -> Args:
    """first, count of rays with all samples of a size together; some rays have none."""
    rays = torch.randint(0, max(size.rays, 1), (size.samples,), generator=rng)
    count = torch.bincount(rays, minlength=size.rays)[: size.rays] if size.rays else rays.new_zeros(0)
    return {"first": count.cumsum(0) - count, "count": count}


def intervals(rng: torch.Generator, size: Size) -> Args:
    start = rand(rng, size.samples, low=0.5, high=2.0)
    return {"t_start": start, "t_end": start + rand(rng, size.samples, low=0.01, high=0.3), **packed_rays(rng, size)}


def samples_of(t_start: Tensor, t_end: Tensor, first: Tensor, count: Tensor) -> Samples:
    """The ops read no `ray_id`, so it is any tensor of the right shape."""
    return Samples(t_start, t_end, torch.zeros(t_start.shape, dtype=torch.int64, device=t_start.device), first, count)


# ---- composite and judge


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


def volume_args(rng: torch.Generator, size: Size) -> Args:
    args = composite_args(rng, size)
    return {name: value for name, value in args.items() if name != "stop"}


def run_volume(density: Tensor, colour: Tensor, first: Tensor, count: Tensor, **rest: Any) -> Any:
    return volume(density, colour, pack=packed.Pack(first, count), **rest)


# ---- scan and select


def scan_args(rng: torch.Generator, size: Size) -> Args:
    return {"values": rand(rng, size.samples, 2, low=0.5, high=1.5), **packed_rays(rng, size)}


def compact_args(rng: torch.Generator, size: Size) -> Args:
    return {"keep": rand(rng, size.samples) > 0.5, "count": packed_rays(rng, size)["count"]}


# ---- adam


def adam_args(rng: torch.Generator, size: Size) -> Args:
    shape = (size.samples, 4)
    return {
        "parameter": rand(rng, *shape, low=-1),
        "grad": rand(rng, *shape, low=-1),
        "m": rand(rng, *shape, low=-1),
        "v": rand(rng, *shape),
        "lr": 1e-2,
        "beta1": 0.9,
        "beta2": 0.99,
        "eps": 1e-8,
        "decay": 1e-3,
        "count": 3,
        "gate": torch.tensor(True),
    }


def run_adam(parameter: Tensor, grad: Tensor, m: Tensor, v: Tensor, **rates: Any) -> None:
    update(parameter, grad, m, v, Rates(**rates))


def adam_rows_args(rng: torch.Generator, size: Size) -> Args:
    args = adam_args(rng, size)
    rows = torch.randperm(size.samples, generator=rng)[: (size.samples + 1) // 2]
    return {**args, "rows": rows, "grad": args["grad"][: len(rows)].contiguous()}


def run_adam_rows(parameter: Tensor, rows: Tensor, grad: Tensor, m: Tensor, v: Tensor, **rates: Any) -> None:
    update_rows(parameter, rows, grad, m, v, Rates(**rates))


def run_rmsprop_rows(parameter: Tensor, rows: Tensor, grad: Tensor, v: Tensor, **rates: Any) -> None:
    update_rows(parameter, rows, grad, None, v, Rates(beta1=0.0, **rates))


def rmsprop_rows_args(rng: torch.Generator, size: Size) -> Args:
    args = adam_rows_args(rng, size)
    return {name: value for name, value in args.items() if name not in ("m", "beta1")}


# ---- encodings and networks


def encode_args(rng: torch.Generator, size: Size) -> Args:
    return {
        "positions": rand(rng, size.samples, 3),
        "table": rand(rng, SPEC.total_entries, SPEC.features, low=-1),
    }


def known_args(rng: torch.Generator, size: Size) -> Args:
    return {**encode_args(rng, size), "known": rand(rng, size.samples, SPEC.width)}


def known_is_returned(args: Args, result: Any) -> str:
    lost = args["positions"].isnan().any(-1)
    same = torch.equal(result[~lost].nan_to_num(), args["known"][~lost].nan_to_num())
    return "" if same and bool(result[lost].isnan().all()) else "the encoding is not the known one"


def cells_are_the_bits(args: Args, result: Any) -> str:
    expected = np.unpackbits(args["bits"].numpy(), axis=-1, bitorder="little")
    return "" if np.array_equal(result.numpy(), expected) else "the cells are not the bits"


def network_args(rng: torch.Generator, _: Size) -> Args:
    return {
        "table": rand(rng, SPEC.total_entries, SPEC.features, low=-1),
        "w1": rand(rng, SPEC.width, 16, low=-0.5, high=0.5),
        "w2": rand(rng, 16, 8, low=-0.5, high=0.5),
        "c1": rand(rng, 8 + WIDTH, 16, low=-0.5, high=0.5),
        "c2": rand(rng, 16, 3, low=-0.5, high=0.5),
        "low": torch.full((3,), -1.0),
        "high": torch.full((3,), 1.0),
    }


def network_of(args: Args, unbounded: bool) -> Network:
    table, w1, w2, c1, c2, low, high = (args.pop(name) for name in ("table", "w1", "w2", "c1", "c2", "low", "high"))
    return Network(table, SPEC, (w1, w2), (c1, c2), Box(low, high, unbounded))


def infer_args(rng: torch.Generator, size: Size) -> Args:
    directions = torch.nn.functional.normalize(rand(rng, size.rays, 3, low=-1), dim=-1)
    rays = {"origins": rand(rng, size.rays, 3, low=-0.5, high=0.5), "directions": directions}
    return {**network_args(rng, size), **rays, **intervals(rng, size), "stop": 1e-3, "faint": 1e-3}


def run_infer(**args: Any) -> Any:
    rows = {name: args.pop(name) for name in ("t_start", "t_end", "first", "count")}
    found = infer(network_of(args, True), samples=samples_of(**rows), keep=True, **args)
    # The features of invisible samples are not initialised.
    return found._replace(features=torch.where(found.density[:, None] == HIDDEN, 0.0, found.features))


def train_args(rng: torch.Generator, size: Size) -> Args:
    n = size.samples
    return {
        **network_args(rng, size),
        "positions": rand(rng, n, 3, low=-1),
        "directions": torch.nn.functional.normalize(rand(rng, n, 3, low=-1), dim=-1),
        "colour_grad": rand(rng, n, 3, low=-1),
        "density_grad": rand(rng, n, low=-1),
    }


def run_train(**args: Any) -> Any:
    table = args["table"]
    rows, values, layers = train(network_of(args, False), **args)
    # The order of rows is open, and rows without a gradient may be listed. So gradients are put into whole tables.
    return torch.zeros_like(table, requires_grad=False).index_add(0, rows, values), layers


def mlp_args(rng: torch.Generator, size: Size) -> Args:
    return {
        "inputs": rand(rng, size.samples, 16, low=-1),
        "first": rand(rng, 16, 16, low=-0.5, high=0.5),
        "last": rand(rng, 16, 3, low=-0.5, high=0.5),
    }


def flat_args(rng: torch.Generator, size: Size) -> Args:
    return {
        "inputs": rand(rng, size.samples, 16, low=-1),
        "params": rand(rng, 2 * 256, low=-0.5, high=0.5),
        "hidden": 16,
        "outputs": 3,
    }


# ---- rays in grids

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


# ---- random numbers


def draw_args(_: torch.Generator, size: Size) -> Args:
    return {"seed": 5, "step": 3, "stream": 2, "n": size.samples, "first": 7}


def run_uniform(seed: int, step: int, stream: int, rows: int, columns: int, first: int) -> Any:
    return uniform(seed, step, stream, (rows, columns), first=first)


# ---- the rest


def box_args(rng: torch.Generator, size: Size) -> Args:
    return {
        "positions": rand(rng, size.samples, 3, low=-3, high=3),
        "low": torch.full((3,), -1.0),
        "high": torch.full((3,), 1.0),
    }


TOO_LARGE = ("n = 2147483648", "rows = 2147483648", "columns = 2147483648", "n_rays = 2147483648")
"""These arguments are right, but the result takes gigabytes of memory."""

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
    Case((f"{OPS}.judge.op.judge",), judge_args, run_judge, without=INFINITE),
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
    Case((f"{OPS}.adam.op.update",), adam_args, run_adam, inplace=("parameter", "m", "v")),
    Case((f"{OPS}.adam.op.update_rows",), adam_rows_args, run_adam_rows, inplace=("parameter", "m", "v")),
    Case(
        (f"{OPS}.adam.op.update_rows",),
        rmsprop_rows_args,
        run_rmsprop_rows,
        inplace=("parameter", "v"),
        label="without momentum",
    ),
    Case(
        (f"{OPS}.hash_grid.op.encode",),
        encode_args,
        lambda positions, table: encode(positions, table, SPEC),
        ("positions", "table"),
        close=1e-3,
    ),
    Case(
        (f"{OPS}.hash_grid.op.encode",),
        known_args,
        lambda positions, table, known: encode(positions, table, SPEC, known),
        holds=known_is_returned,
        label="known",
    ),
    Case((f"{OPS}.ngp_step.op.infer",), infer_args, run_infer, close=1e-3),
    Case((f"{OPS}.ngp_step.op.train",), train_args, run_train, close=1e-3),
    Case(
        (f"{OPS}.mlp.op.mlp",),
        mlp_args,
        lambda inputs, first, last: mlp(inputs, (first, last)),
        ("inputs", "first", "last"),
    ),
    Case(
        (f"{OPS}.mlp.op.mlp_flat",),
        flat_args,
        lambda inputs, params, hidden, outputs: mlp_flat(inputs, params, (16, hidden, 16), outputs),
        ("inputs", "params"),
    ),
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
    Case((f"{OPS}.philox.op.words",), draw_args, words, without=TOO_LARGE),
    Case(
        (f"{OPS}.philox.op.integers",),
        lambda rng, size: {**draw_args(rng, size), "high": 10},
        integers,
        without=TOO_LARGE,
    ),
    Case(
        (f"{OPS}.philox.op.uniform",),
        lambda rng, size: {"seed": 5, "step": 3, "stream": 2, "rows": size.samples, "columns": 2, "first": 7},
        run_uniform,
        without=TOO_LARGE,
    ),
    Case(
        (f"{OPS}.harmonics.op.harmonics",),
        lambda rng, size: {"direction": rand(rng, size.samples, 3, low=-1), "degree": 4},
        harmonics,
        ("direction",),
    ),
    Case(
        (f"{OPS}.ngp_step.inputs.to_unit_cube",),
        box_args,
        lambda positions, low, high: to_unit_cube(positions, Box(low, high, True)),
        ("positions",),
    ),
    Case((f"{OPS}.contraction.box_units",), box_args, contraction.box_units, ("positions",)),
    Case(
        (f"{OPS}.contraction.contract",),
        lambda rng, size: {"points": rand(rng, size.samples, 3, low=-3, high=3)},
        contraction.contract,
        ("points",),
    ),
    Case(
        (f"{OPS}.activations.Activation",),
        lambda rng, size: {"raw": rand(rng, size.samples, low=-3, high=3), "shift": 1.0, "cap": 15.0},
        lambda raw, shift, cap: activations.Activation("exp", shift, cap)(raw),
        ("raw",),
    ),
    Case(
        (f"{OPS}.packed.pack_counts", f"{OPS}.packed.Samples", f"{OPS}.packed.Samples.to"),
        packed_rays,
        lambda first, count: (packed.pack_counts(count), packed.Samples(first, first, first, first, count).to("cpu")),
        # torch itself says that such a tensor has no values to copy.
        without=("first on meta", "count on meta"),
    ),
    Case(
        (f"{OPS}.packed.pack_ids",),
        lambda rng, size: {
            "ray_id": torch.randint(0, max(size.rays, 1), (size.samples if size.rays else 0,), generator=rng)
            .sort()
            .values,
            "n_rays": size.rays,
        },
        packed.pack_ids,
        without=TOO_LARGE,
    ),
    Case(
        (f"{OPS}.hash_grid.spec.GridSpec",),
        lambda *_: {"levels": 4, "features": 2, "log2_entries": 8, "base": 4, "finest": 16},
        lambda **sizes: (lambda spec: (spec.total_entries, spec.width))(GridSpec(**sizes)),
        sizes=(USUAL,),
    ),
    Case(
        (f"{OPS}.hash_grid.spec.GrownSpec", f"{OPS}.hash_grid.spec.grown_scale"),
        lambda *_: {"levels": 4, "log2_entries": 8, "base": 4, "growth": 1.5},
        lambda **sizes: (GrownSpec(**sizes).total_entries, grown_scale(2, sizes["growth"], sizes["base"])),
        sizes=(USUAL,),
    ),
]

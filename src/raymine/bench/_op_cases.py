"""The cases of `raymine bench ops`: for every op its directions and shapes, with random inputs of a fixed seed.

Bytes that must move: every input is read once and every result is written once, unless a case says otherwise. Values
that a kernel keeps for its own backward pass do not count, nor do masks and intermediate sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from raymine.bench._op_inputs import HALF, JUMPS, ROUNDING, SEED, Case, Maker, Named, RandomInputs, Sizes
from raymine.kernels import dispatch
from raymine.kernels.adam.op import Rates, update, update_rows
from raymine.kernels.composite.op import Composited, composite
from raymine.kernels.harmonics.op import harmonics
from raymine.kernels.hash_grid.op import GridSpec, encode
from raymine.kernels.judge.op import Wanted, judge
from raymine.kernels.march.op import Spacing, march
from raymine.kernels.mlp.op import mlp
from raymine.kernels.ngp_step.op import WIDTH, Box, Network, infer, train
from raymine.kernels.packed import Samples
from raymine.kernels.philox.op import Stream, words
from raymine.kernels.planes.op import plane_product
from raymine.kernels.resample.op import resample
from raymine.kernels.scan.op import running_product, running_sum
from raymine.kernels.select.op import compact
from raymine.kernels.traverse.op import Grids, Stride, Traversed, traverse
from raymine.kernels.volume.op import Volume, volume
from raymine.kernels.voxels.op import interpolate


def philox_words(sizes: Sizes) -> Case:
    """Random words. Writes 8 bytes per word."""
    n = sizes.samples

    def run() -> Named:
        return {"words": words(SEED, 1, Stream.MINING, n, sizes.device)}

    return Case("forward", {"words": n}, 8 * n, 0.0, lambda: run)


def hash_grid(direction: str, levels: int, features: int, sizes: Sizes) -> Case:
    """The hash encoding. A corner counts once for every sample that reads it, although samples share corners on coarse
    levels, where most come from a cache. Backward to the table reads and writes corners, and first zeroes the
    gradient."""
    draws, n = RandomInputs(sizes), sizes.samples
    spec = GridSpec(levels=levels, features=features, log2_entries=sizes.log2_entries)
    points, grad = draws.uniform(n, 3), draws.normal(n, spec.width)
    table = draws.normal(spec.total_entries, features)
    shapes = {"samples": n, "levels": levels, "features": features, "entries": 1 << sizes.log2_entries}
    numbers = 4 * spec.width * n
    if direction == "forward":

        def forward() -> Named:
            with torch.no_grad():
                return {"encoding": encode(points, table, spec)}

        return Case(direction, shapes, 12 * n + 9 * numbers, ROUNDING, lambda: forward)

    to_table = direction == "backward to table"
    leaf = (table if to_table else points).requires_grad_()

    def prepare() -> Callable[[], Named]:
        out = encode(points, table, spec)
        return lambda: {"gradient": torch.autograd.grad(out, leaf, grad, retain_graph=True)[0]}

    if to_table:
        moved = 12 * n + 17 * numbers + 4 * table.numel()
        return Case(direction, shapes, moved, ROUNDING, prepare)
    return Case(direction, shapes, 24 * n + 9 * numbers, JUMPS, prepare)


def look_up(op: str, direction: str, sizes: Sizes) -> Case:
    """Products of three planes, or a full grid of voxels: 16 features a vertex. Corners count as in `hash_grid`."""
    draws, n, side, features = RandomInputs(sizes), sizes.samples, sizes.resolution, 16
    points, grad = draws.uniform(n, 3), draws.normal(n, features)
    table = draws.normal(3, side, side, features) if op == "planes" else draws.normal(side**3, features)
    index = torch.arange(side**3, dtype=torch.int32, device=sizes.device)
    whole = torch.tensor([side], dtype=torch.int32, device=sizes.device)

    def called() -> Tensor:
        return plane_product(points, table) if op == "planes" else interpolate(points, index, whole, table)

    def forward() -> Named:
        with torch.no_grad():
            return {"features": called()}

    def prepare() -> Callable[[], Named]:
        out = called()
        return lambda: {"gradient": torch.autograd.grad(out, table, grad, retain_graph=True)[0].to_dense()}

    shapes, corners = {"samples": n, "side": side, "features": features}, 12 if op == "planes" else 8
    if direction == "forward":
        return Case(direction, shapes, n * (12 + 4 * features * (corners + 1)), ROUNDING, lambda: forward)
    table.requires_grad_()
    return Case(direction, shapes, n * (12 + 4 * features * (2 * corners + 1)) + 4 * table.numel(), ROUNDING, prepare)


def harmonics_of_directions(sizes: Sizes) -> Case:
    """Spherical harmonics of degree 4, as most fields use."""
    direction, degree = RandomInputs(sizes).unit(sizes.samples), 4

    def run() -> Named:
        return {"harmonics": harmonics(direction, degree)}

    shapes = {"samples": sizes.samples, "degree": degree}
    return Case("forward", shapes, (12 + 4 * degree**2) * sizes.samples, ROUNDING, lambda: run)


def march_rays(sizes: Sizes) -> Case:
    """Rays from outside through a grid with 3 % occupied cells in blobs. Reads of cells do not count, because their
    number depends on what is skipped."""
    draws = RandomInputs(sizes)
    grid, side = draws.blobs(sizes.resolution), 3.0
    # The step length of the `ngp` recipe: a fifth of a cell.
    spacing = Spacing(side / (4.7 * sizes.resolution))

    def bundle(n: int) -> Callable[[], Samples]:
        origins = 4 * draws.unit(n)
        towards = torch.nn.functional.normalize((draws.uniform(n, 3) - 0.5) * side - origins, dim=-1)
        near, jitter = torch.full((n,), 0.05, device=sizes.device), draws.uniform(n)
        far = torch.full_like(near, 1e3)
        return lambda: march(origins, towards, near, far, grid, spacing, jitter)

    with dispatch.force("reference"):
        each = len(bundle(256)()) / 256
        n = max(1, round(sizes.samples / each))
        rays = bundle(n)
        samples = len(rays())

    def run() -> Named:
        return dict(vars(rays()))

    def compared(found: Named) -> Named:
        return {"count": found["count"], "first": found["first"], **_by_ray(found)}

    shapes = {"rays": n, "samples": samples, "cells": sizes.resolution**3}
    return Case("forward", shapes, (36 + 16) * n + 16 * samples, JUMPS, lambda: run, compared)


def _by_ray(found: Named) -> Named:
    """Sums over the samples of each ray. A midpoint on the face of a cell may fall on either side, so samples cannot be
    compared one by one."""
    zero = torch.zeros(len(found["count"]), device=found["count"].device, dtype=torch.float64)
    return {name: zero.index_add(0, found["ray_id"], found[name].double()) for name in ("t_start", "t_end")}


def traverse_rays(direction: str, cone: float, sizes: Sizes) -> Case:
    """Rays from outside through two boxes, the outer one twice as large, each with 3 % occupied cells in blobs. Reads
    of cells do not count, nor do the intersections of rays with boxes."""
    draws, side = RandomInputs(sizes), 3.0
    levels = [draws.blobs(sizes.resolution).cells.view((sizes.resolution,) * 3) != 0 for _ in range(2)]
    box = torch.tensor([-0.5 * side] * 3 + [0.5 * side] * 3, device=sizes.device)
    grids = Grids(torch.stack(levels), torch.stack((box, 2 * box)))
    stride = Stride(side / (4.7 * sizes.resolution), cone)

    def bundle(n: int) -> Callable[[], Traversed]:
        origins = 4 * draws.unit(n)
        towards = torch.nn.functional.normalize((draws.uniform(n, 3) - 0.5) * side - origins, dim=-1)
        bounds = torch.full((n,), 0.05, device=sizes.device), torch.full((n,), 1e3, device=sizes.device)
        return lambda: traverse(origins, towards, bounds, grids, stride)

    with dispatch.force("reference"):
        each = len(bundle(256)().samples) / 256
        n = max(1, round(sizes.samples / each))
        rays = bundle(n)
        samples = len(rays().samples)

    def run() -> Named:
        found = rays()
        return {**vars(found.samples), "joined": found.joined, "end": found.end, "edges": found.edges}

    def compared(found: Named) -> Named:
        return {**{name: found[name] for name in ("end", "count", "edges")}, **_by_ray(found)}

    shapes = {"rays": n, "samples": samples, "cells": grids.binaries.numel()}
    return Case(direction, shapes, (32 + 28) * n + 17 * samples, JUMPS, lambda: run, compared)


def scan_rays(what: str, direction: str, sizes: Sizes) -> Case:
    """Running sums and products of numbers in 0..1 along rays. Backward of the product reads its inputs again."""
    draws = RandomInputs(sizes)
    packed = draws.rays(sizes.samples)
    n, rays = sizes.samples, packed.n_rays
    values, grad = draws.uniform(n), draws.normal(n)
    scan = running_sum if what == "sum" else running_product
    shapes = {"samples": n, "rays": rays}
    if direction == "forward":

        def forward() -> Named:
            with torch.no_grad():
                return {what: scan(values, packed.first, packed.count, exclusive=True)}

        return Case(f"{what}, forward", shapes, 8 * n + 16 * rays, ROUNDING, lambda: forward)

    values.requires_grad_()

    def prepare() -> Callable[[], Named]:
        out = scan(values, packed.first, packed.count, exclusive=True)
        return lambda: {"gradient": torch.autograd.grad(out, values, grad, retain_graph=True)[0]}

    moved = (8 if what == "sum" else 12) * n + 16 * rays
    return Case(f"{what}, backward", shapes, moved, ROUNDING, prepare)


def composite_rays(op: str, direction: str, sizes: Sizes) -> Case:
    """Compositing, by `composite` or `volume`. Backward goes from the colour of rays to density, colour, background."""
    draws = RandomInputs(sizes)
    packed = draws.rays(sizes.samples)
    n, rays = sizes.samples, packed.n_rays
    density, colour, background = torch.exp(3 * draws.normal(n)), draws.uniform(n, 3), draws.uniform(rays, 3)
    shapes = {"samples": n, "rays": rays}

    def call() -> Composited | Volume:
        if op == "composite":
            return composite(density, colour, packed, background)
        return volume(density, colour, packed.t_start, packed.t_end, packed.pack, background)

    if direction == "forward":

        def forward() -> Named:
            with torch.no_grad():
                return call()._asdict()

        kept = 4 if op == "composite" else 12
        return Case(direction, shapes, (24 + kept) * n + (28 + 20) * rays, ROUNDING, lambda: forward)

    leaves = {"density": density, "colour": colour, "background": background}
    grad = draws.normal(rays, 3)
    for leaf in leaves.values():
        leaf.requires_grad_()

    def prepare() -> Callable[[], Named]:
        out = call().colour
        inputs = tuple(leaves.values())
        return lambda: dict(zip(leaves, torch.autograd.grad(out, inputs, grad, retain_graph=True), strict=True))

    return Case(direction, shapes, (24 + 16) * n + (40 + 12) * rays, ROUNDING, prepare)


def resample_rays(sizes: Sizes) -> Case:
    """64 edges of each ray to 64 new intervals, as between two rounds of proposals."""
    draws = RandomInputs(sizes)
    rays = max(1, sizes.samples // 64)
    edges, cdfs = (draws.uniform(rays, 64).sort(-1).values for _ in range(2))
    offset = draws.uniform(rays)

    def call() -> Named:
        new, samples = resample(edges, cdfs, offset, 64)
        return {"edges": new, "samples": samples}

    # Where the CDF hardly rises, a last bit of it moves a sample by much.
    return Case("64 to 64", {"rays": rays, "edges": 64}, 4 * rays * (64 + 64 + 65 + 64), 1e-3, lambda: call)


def judge_rays(sizes: Sizes) -> Case:
    """From pre-activations to loss and gradients."""
    draws = RandomInputs(sizes)
    packed = draws.rays(sizes.samples)
    n, rays = sizes.samples, packed.n_rays
    wanted = Wanted(draws.uniform(rays, 3), draws.uniform(rays, 3), torch.ones(rays, device=sizes.device))
    colour, density = draws.normal(n, 3), 3 * draws.normal(n)

    def run() -> Named:
        return judge(colour, density, packed, wanted)._asdict()

    return Case("forward", {"samples": n, "rays": rays}, (24 + 20) * n + (44 + 8) * rays, ROUNDING, lambda: run)


def select_samples(sizes: Sizes) -> Case:
    """Compaction in which 30 % of the samples are kept."""
    draws = RandomInputs(sizes)
    count = draws.rays(sizes.samples).count
    keep = draws.uniform(sizes.samples) < 0.3
    kept = int(keep.sum())

    def run() -> Named:
        return compact(keep, count)._asdict()

    shapes = {"samples": sizes.samples, "rays": len(count), "kept": kept}
    return Case("forward", shapes, sizes.samples + 8 * kept + 24 * len(count), 0.0, lambda: run)


def adam(direction: str, sizes: Sizes) -> Case:
    """Adam on a table of 8 levels x 4 features. Dense: all entries, with both moments. Rows: an eighth of the entries,
    without a first moment, as the recipes train tables."""
    draws = RandomInputs(sizes)
    entries, features = GridSpec(levels=8, features=4, log2_entries=sizes.log2_entries).total_entries, 4
    # Near 0, as initial tables are, so that the comparison is of the update and not of the previous values.
    start, square = 1e-4 * draws.normal(entries, features), (1e-3 * draws.normal(entries, features)) ** 2
    if direction == "dense":
        first, grad = 1e-3 * draws.normal(entries, features), 1e-3 * draws.normal(entries, features)

        def dense() -> Callable[[], Named]:
            p, m, v = start.clone(), first.clone(), square.clone()

            def run() -> Named:
                update(p, grad, m, v, Rates(1e-2, 0.9, 0.99, 1e-15, 1e-6, 10))
                return {"parameter": p, "m": m, "v": v}

            return run

        return Case(direction, {"entries": entries, "features": features}, 28 * start.numel(), ROUNDING, dense)

    rows = draws.uniform(entries).argsort()[: entries // 8].sort().values
    part = 1e-3 * draws.normal(len(rows), features)

    def sparse() -> Callable[[], Named]:
        p, v = start.clone(), square.clone()

        def run() -> Named:
            update_rows(p, rows, part, None, v, Rates(1e-2, 0.0, 0.99, 1e-15, 0.0, 10))
            return {"parameter": p, "v": v}

        return run

    shapes = {"entries": entries, "features": features, "rows": len(rows)}
    return Case(direction, shapes, (8 + 20 * features) * len(rows), ROUNDING, sparse)


def perceptron(direction: str, sizes: Sizes) -> Case:
    """A perceptron 32 -> 64 -> 64 -> 16 in fp16; the reference always computes in float32. Backward goes to inputs and
    layers, and reads the inputs again."""
    draws, n, widths = RandomInputs(sizes), sizes.samples, (32, 64, 64, 16)
    inputs, grad = draws.normal(n, widths[0]), draws.normal(n, widths[-1])
    # Scaled like initial weights, so that outputs are as large as inputs.
    layers = [draws.normal(i, o) * (2 / i) ** 0.5 for i, o in pairwise(widths)]
    weights = sum(layer.numel() for layer in layers)
    shapes = {"samples": n, "inputs": 32, "hidden": 64, "layers": len(layers), "outputs": 16}
    ends = n * (widths[0] + widths[-1])
    if direction == "forward, fp16":

        def forward() -> Named:
            with torch.no_grad():
                return {"outputs": mlp(inputs, layers, precision="fp16")}

        return Case(direction, shapes, 4 * (ends + weights), HALF, lambda: forward)

    names = ("inputs", *(f"layer {i}" for i in range(len(layers))))
    leaves = [leaf.requires_grad_() for leaf in (inputs, *layers)]

    def prepare() -> Callable[[], Named]:
        out = mlp(leaves[0], leaves[1:], precision="fp16")
        return lambda: dict(zip(names, torch.autograd.grad(out, leaves, grad, retain_graph=True), strict=True))

    return Case(direction, shapes, 4 * (ends + n * widths[0] + 2 * weights), JUMPS, prepare)


def ngp_infer(sizes: Sizes) -> Case:
    """The first pass. About half of the samples are hidden, so the bytes that must move are not known."""
    draws = RandomInputs(sizes)
    network, packed = _network(draws, sizes), draws.rays(sizes.samples)
    rays = packed.n_rays
    origins, directions = torch.zeros(rays, 3, device=sizes.device), draws.unit(rays)
    # From the centre of the box outwards.
    near = replace(packed, t_start=packed.t_start - 2, t_end=packed.t_end - 2)

    def run() -> Named:
        found = infer(network, origins, directions, near, 1e-4, 1e-3)
        return {"colour": found.colour, "density": found.density}

    def compared(found: Named) -> Named:
        """Opacity instead of pre-activations, whose norm would be dominated by the value HIDDEN."""
        opacity = -torch.expm1(-torch.exp(found["density"] - 1) * 0.01)
        return {"colour": found["colour"], "opacity": opacity}

    return Case("infer", {"samples": sizes.samples, "rays": rays}, None, JUMPS, lambda: run, compared)


def ngp_train(sizes: Sizes) -> Case:
    """The second pass, over an eighth of the samples. Bytes that must move depend on the rows that samples share."""
    draws = RandomInputs(sizes)
    network, n = _network(draws, sizes), max(1, sizes.samples // 8)
    positions, directions = draws.uniform(n, 3) * 2 - 1, draws.unit(n)
    grads = draws.normal(n, 3), draws.normal(n)

    def run() -> Named:
        found = train(network, positions, directions, *grads)
        layers = {f"layer {i}": layer for i, layer in enumerate(found.layers)}
        return {"rows": found.rows, "values": found.values, **layers}

    def compared(found: Named) -> Named:
        """The dense gradient of the table, because rows with gradient 0 may or may not be listed."""
        table = torch.zeros_like(network.table).index_add(0, found["rows"], found["values"])
        return {"table": table, **{name: part for name, part in found.items() if name.startswith("layer")}}

    return Case("train", {"samples": n}, None, ROUNDING, lambda: run, compared)


def _network(draws: RandomInputs, sizes: Sizes) -> Network:
    """A network with 8 levels x 4 features, as wide as in the recipes for the device."""
    spec = GridSpec(levels=8, features=4, log2_entries=sizes.log2_entries, finest=512)
    width = 32 if sizes.device.type == "cpu" else 64
    density = 0.4 * draws.normal(spec.width, width), 0.4 * draws.normal(width, 16)
    colour = [0.4 * draws.normal(i, o) for i, o in ((16 + WIDTH, width), (width, width), (width, 3))]
    corner = torch.ones(3, device=sizes.device)
    table = draws.normal(spec.total_entries, spec.features)
    return Network(table, spec, density, tuple(colour), Box(-corner, corner, False))


_GRIDS = ((16, 2), (8, 4))
_WAYS = ("forward", "backward to table", "backward to positions")

MAKERS: dict[str, tuple[Maker, ...]] = {
    "philox": (philox_words,),
    "hash_grid": tuple(partial(hash_grid, way, *shape) for shape in _GRIDS for way in _WAYS),
    "harmonics": (harmonics_of_directions,),
    "mlp": (partial(perceptron, "forward, fp16"), partial(perceptron, "backward, fp16")),
    "march": (march_rays,),
    "traverse": (partial(traverse_rays, "even steps", 0.0), partial(traverse_rays, "cone", 0.004)),
    "scan": tuple(partial(scan_rays, what, way) for what in ("sum", "product") for way in ("forward", "backward")),
    "composite": tuple(partial(composite_rays, "composite", way) for way in ("forward", "backward")),
    "volume": tuple(partial(composite_rays, "volume", way) for way in ("forward", "backward")),
    "resample": (resample_rays,),
    "judge": (judge_rays,),
    "select": (select_samples,),
    "adam": (partial(adam, "dense"), partial(adam, "rows")),
    "ngp_step": (ngp_infer, ngp_train),
    "planes": tuple(partial(look_up, "planes", way) for way in _WAYS[:2]),
    "voxels": tuple(partial(look_up, "voxels", way) for way in _WAYS[:2]),
}
"""The cases of each op. A case makes its inputs when it is made, so that only those of one case are in memory."""

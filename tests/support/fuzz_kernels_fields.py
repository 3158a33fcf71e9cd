"""Fuzz cases of the ops that radiance fields consist of: encodings, networks, contraction and activations."""

from __future__ import annotations

from typing import Any

import torch

from raymine.kernels import activations, contraction
from raymine.kernels.harmonics.op import harmonics
from raymine.kernels.hash_grid.op import GridSpec, GrownSpec, encode, grown_scale
from raymine.kernels.mlp.op import mlp, mlp_flat
from raymine.kernels.ngp_step.op import HIDDEN, WIDTH, Box, Network, infer, render, to_unit_cube, train
from raymine.kernels.planes.op import plane_product, vector_matrix
from raymine.kernels.voxels.op import interpolate
from support.fuzz import USUAL, Args, Case, Size
from support.fuzz_arguments import intervals, rand, samples_of

OPS = "raymine.kernels"
SPEC = GridSpec(levels=3, features=4, log2_entries=8, base=4, finest=16)
"""The coarsest level is dense, the others are hashed."""

# ---- encodings


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


def plane_args(rng: torch.Generator, size: Size) -> Args:
    return {"positions": rand(rng, size.samples, 3), "planes": rand(rng, 3, 5, 5, 4, low=-1)}


def moving_args(rng: torch.Generator, size: Size) -> Args:
    times = rand(rng, 3, 5, 3, 4, low=-1)
    return {**plane_args(rng, size), "positions": rand(rng, size.samples, 4), "times": times}


def line_args(rng: torch.Generator, size: Size) -> Args:
    return {**plane_args(rng, size), "lines": rand(rng, 3, 5, 1, 4, low=-1)}


def voxel_args(rng: torch.Generator, size: Size) -> Args:
    return {"positions": rand(rng, size.samples, 3), "table": rand(rng, 40, 5, low=-1)}


def run_voxels(positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """A grid of 4^3 vertices, of which 40 have rows."""
    index = torch.arange(64, dtype=torch.int32, device=positions.device)
    index = torch.where(index < 40, index, -1)
    side = torch.tensor([4], dtype=torch.int32, device=positions.device)
    return interpolate(positions, index, side, table, -2.0)


# ---- networks


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


def render_args(rng: torch.Generator, size: Size) -> Args:
    return {**infer_args(rng, size), "background": rand(rng, 3)}


def run_render(**args: Any) -> Any:
    rows = {name: args.pop(name) for name in ("t_start", "t_end", "first", "count")}
    return render(network_of(args, True), samples=samples_of(**rows), **args)


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


# ---- contraction


def box_args(rng: torch.Generator, size: Size) -> Args:
    return {
        "positions": rand(rng, size.samples, 3, low=-3, high=3),
        "low": torch.full((3,), -1.0),
        "high": torch.full((3,), 1.0),
    }


CASES = [
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
    Case((f"{OPS}.planes.op.plane_product",), plane_args, plane_product, ("positions", "planes"), close=1e-3),
    Case(
        (f"{OPS}.planes.op.plane_product",),
        moving_args,
        plane_product,
        ("positions", "planes", "times"),
        close=1e-3,
        label="times",
    ),
    Case((f"{OPS}.planes.op.vector_matrix",), line_args, vector_matrix, ("positions", "planes", "lines"), close=1e-3),
    Case((f"{OPS}.voxels.op.interpolate",), voxel_args, run_voxels, ("positions",), close=1e-3),
    Case((f"{OPS}.ngp_step.op.infer",), infer_args, run_infer, close=1e-3),
    Case((f"{OPS}.ngp_step.op.render",), render_args, run_render, close=1e-3),
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

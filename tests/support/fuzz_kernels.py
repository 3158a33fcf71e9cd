"""Fuzz cases of the public callables of `kernels/*/op.py`, and of the modules that ops share.

Those of rays are in `fuzz_kernels_rays` and those of fields in `fuzz_kernels_fields`. Here are the optimizer, random
numbers and packs; `CASES` has all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from raymine.kernels import packed
from raymine.kernels.adam.op import Rates, update, update_rows
from raymine.kernels.philox.op import integers, uniform, words
from support import fuzz_kernels_fields, fuzz_kernels_rays
from support.fuzz import Args, Case, Size
from support.fuzz_arguments import packed_rays, rand

OPS = "raymine.kernels"

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


# ---- random numbers


def draw_args(_: torch.Generator, size: Size) -> Args:
    return {"seed": 5, "step": 3, "stream": 2, "n": size.samples, "first": 7}


def run_uniform(seed: int, step: int, stream: int, rows: int, columns: int, first: int) -> Any:
    return uniform(seed, step, stream, (rows, columns), first=first)


TOO_LARGE = ("n = 2147483648", "rows = 2147483648", "columns = 2147483648", "n_rays = 2147483648")
"""These arguments are right, but the result takes gigabytes of memory."""

CASES = [
    *fuzz_kernels_rays.CASES,
    Case((f"{OPS}.adam.op.update",), adam_args, run_adam, inplace=("parameter", "m", "v")),
    Case((f"{OPS}.adam.op.update_rows",), adam_rows_args, run_adam_rows, inplace=("parameter", "m", "v")),
    Case(
        (f"{OPS}.adam.op.update_rows",),
        rmsprop_rows_args,
        run_rmsprop_rows,
        inplace=("parameter", "v"),
        label="without momentum",
    ),
    *fuzz_kernels_fields.CASES,
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
]

"""Compiles the kernels of the fused step, of its renderer, of `mlp`, `volume` and `resample` for a GPU that need not be
present, and checks the machine code: `python -m support.compile_kernels 90`. With a limit, `... 89 99`, prints which
variant of `train` fits into that many KB of shared memory: for the networks of the recipes, on a Hopper also for the
largest one.

Kernels are replaced by objects that compile them for the arguments of each launch. This is a separate program because
the tests run Triton's interpreter, which accepts code that the compiler rejects.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from raymine.engines.fused import draws, engine, graph, grid, rays, renderer, stages, trainer
from raymine.fields import HashFieldConfig
from raymine.kernels.hash_grid.op import GridSpec
from raymine.kernels.mlp import gpu as mlp
from raymine.kernels.ngp_step.gpu import WAYS
from raymine.kernels.resample import gpu as resample
from raymine.kernels.volume import gpu as volume
from raymine.mining import PUBLISHED, HardConfig, MiningConfig
from raymine.mining.config import MiningPolicy
from raymine.pixels import PixelConfig
from support.fused import CONFIG, POISSON, SHAPES, trainer_for
from support.machine_code import disassemble, unset_registers

TYPES = {
    torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64", torch.uint8: "u8", torch.int32: "i32",
    torch.int64: "i64",
}  # fmt: skip
RECIPES = ("ngp", "ngp-large")
LARGEST = HashFieldConfig(GridSpec(16, 8, 9, 4, 32), width=128, geometry=64, colour_layers=3)
POLICIES: tuple[MiningPolicy, ...] = ("prune", "none")
OPTIONS = ("num_warps", "num_stages", "maxnreg")


class Compiled:
    """Replaces a kernel: compiles it for the arguments of a launch, once per combination of types and constants."""

    def __init__(self, kernel: Any, target: GPUTarget, seen: set[object]) -> None:
        self.kernel, self.target, self.seen = kernel, target, seen

    def __getitem__(self, grid: object) -> Callable[..., object]:
        return partial(self.warmup, grid=grid)

    def warmup(self, *arguments: object, grid: object, **named: Any) -> object:
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        names = self.kernel.arg_names
        given = dict(zip(names, arguments, strict=False)) | named
        signature = {name: "constexpr" if name in named else kind(given[name]) for name in names}
        key = (self.kernel.__name__, *signature.items(), *sorted(named.items()), *sorted(options.items()))
        if key in self.seen:
            return None
        self.seen.add(key)
        places = {name: (i,) for i, name in enumerate(names)}
        aligned = {places[n]: [["tt.divisibility", 16]] for n, v in given.items() if isinstance(v, Tensor) and even(v)}
        source = ASTSource(self.kernel, signature, {places[name]: value for name, value in named.items()}, aligned)
        print(self.kernel.__name__, *(f"{name}={value}" for name, value in {**named, **options}.items()), flush=True)
        compiled = triton.compile(source, target=self.target, options=options)
        with tempfile.TemporaryDirectory() as folder:
            unset = unset_registers(disassemble(compiled.asm["cubin"], Path(folder)))
        assert not unset, f"{self.kernel.__name__} reads registers that nothing has set: {unset}"
        return compiled


def kind(value: object) -> str:
    """Triton's name for the type of an argument."""
    if isinstance(value, Tensor):
        return "*" + TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def even(value: Tensor) -> bool:
    return value.data_ptr() % 16 == 0


def compile_all(target: GPUTarget) -> None:
    seen = replace_kernels(target)
    # The networks of the recipes take minutes to compile for a Turing.
    networks = [(replace(CONFIG, field=SHAPES[name]), name == "ngp") for name in RECIPES if target.arch >= 80]
    prune, none = (replace(CONFIG, mining=replace(POISSON, policy=policy)) for policy in POLICIES)
    for config, unbounded in (
        (CONFIG, False),
        (replace(CONFIG, pixels=PixelConfig(policy="edges"), deterministic=True), True),
        (replace(CONFIG, mining=MiningConfig(hard=PUBLISHED)), False),
        (replace(CONFIG, mining=MiningConfig(hard=HardConfig(draw="topk", reweight="none"))), False),
        (prune, False),
        (none, False),
        *networks,
    ):
        made = trainer_for(config, unbounded)
        own = engine.FusedEngine(made.state, made.data)
        own.warm_up()
        own.renderer().render(made.data.rig.rays_for_image(0), torch.ones(3))
    if target.arch >= 80:
        for widths in ((32, 64, 64, 16), (64, 128, 128, 16)):  # weights held, and weights read again for every tile
            compile_network(mlp.network_of(widths, "relu", "none", "fp16"))
    compile_volume()
    resample.resample(torch.zeros(2, 9), torch.zeros(2, 9), torch.zeros(2), 5)
    print(f"{len(seen)} kernels")


def compile_volume() -> None:
    """With and without a background, and with gradients of colours only, of rays, and of samples."""
    rows = (
        torch.zeros(8),
        torch.zeros(8, 3),
        torch.zeros(8),
        torch.zeros(8),
        torch.zeros(2).long(),
        torch.zeros(2).long(),
    )
    for background in (None, torch.zeros(3), torch.zeros(2, 3)):
        found = volume.forward((*rows, background))
        for few in (1, 2, 6):
            grads = tuple(torch.zeros_like(part) if i < few else None for i, part in enumerate(found))
            volume.backward((*rows, background), found[1], *found[3:], grads)


def compile_network(network: mlp.Network) -> None:
    first, *_, last = network.widths
    inputs, grad = (torch.zeros(100, width, dtype=torch.float16) for width in (first, last))
    weights = torch.zeros(sum(network.sizes), dtype=torch.float16)
    mlp.forward(inputs, weights, network)
    mlp.backward(inputs, weights, grad, network, wanted=True, learn=True)


def print_ways(target: GPUTarget, room: int) -> None:
    replace_kernels(target)
    fields = {name: SHAPES[name] for name in RECIPES} | ({"largest": LARGEST} if target.arch == 90 else {})
    made = {name: trainer_for(replace(CONFIG, field=field)) for name, field in fields.items()}
    with (
        patch.object(trainer, "capability", lambda _: target.arch // 10),
        patch.object(trainer, "shared_memory", lambda _: room << 10),
        patch.object(trainer, "_PLENTY", sys.maxsize),  # always measure
    ):
        for name, each in made.items():
            each.state.device = torch.device("cuda")
            print(f"{name}: way {WAYS.index(each._find_way())}")


def replace_kernels(target: GPUTarget) -> set[object]:
    seen: set[object] = set()
    launched = [(module, vars(module)) for module in (trainer, graph, grid, stages, rays, renderer, draws)]
    for module, names in (
        *launched,
        (mlp, ["_forward"]),
        (mlp.kernels, ["backward", "outer"]),
        (volume, ["_forward", "_backward"]),
        (resample, ["_resample"]),
    ):
        for name in list(names):
            if isinstance(getattr(module, name), JITFunction):
                setattr(module, name, Compiled(getattr(module, name), target, seen))
    return seen


if __name__ == "__main__":
    goal = GPUTarget("cuda", int(sys.argv[1]), 32)
    if len(sys.argv) > 2:
        print_ways(goal, int(sys.argv[2]))
    else:
        compile_all(goal)

"""Fuzz cases of `raymine.compat.tinycudann`: the modules, with the numbers of their dictionaries as arguments.

Here are networks, options and precision. The cases of encodings are in `fuzz_tinycudann_encodings`; `CASES` has both.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.compat import tinycudann as tcnn
from raymine.compat.tinycudann import encodings, modules, networks, options, precision
from support import fuzz_compat_install, fuzz_tinycudann_encodings
from support.fuzz import USUAL, Args, Case, Size
from support.fuzz_arguments import rand
from support.fuzz_expect import Array, careful, equals, require
from support.fuzz_tinycudann_encodings import FEW, TCNN, frequencies, inputs, points

# ---- networks


def network_args(rng: torch.Generator, size: Size) -> Args:
    return {
        "x": rand(rng, size.samples, 5, low=-1),
        "n_input_dims": 5,
        "n_output_dims": 3,
        "n_neurons": 16,
        "n_hidden_layers": 2,
        "seed": 4,
    }


def run_network(x: Tensor, n_input_dims: int, n_output_dims: int, seed: int, **config: int) -> Any:
    module = tcnn.Network(n_input_dims, n_output_dims, {"otype": "CutlassMLP", **config}, seed=seed)
    native = module.native_tcnn_module
    about = (native.n_input_dims(), native.n_output_dims(), native.n_params(), native.name(), len(module.extra_repr()))
    return module(x), module.params.detach(), about


def perceptron(x: Array, params: Array, dims: tuple[int, int], width: int, hidden: int) -> Array:
    """Products with matrices [outputs, inputs] and ReLU; inputs are padded with ones to a multiple of 16."""
    wide = -(-dims[0] // 16) * 16
    x = np.concatenate((x, np.ones((len(x), wide - dims[0]))), 1)
    widths = [wide, *[width] * hidden, -(-dims[1] // 16) * 16]
    at = 0
    for i, (before, after) in enumerate(itertools.pairwise(widths)):
        x = x @ params[at : at + before * after].reshape(after, before).T
        x = np.maximum(x, 0.0) if i < hidden else x
        at += before * after
    require(at == len(params), "the number of parameters")
    return x[:, : dims[1]]


@careful
def network_of(args: Args, result: Any) -> str:
    out, params, (n_in, _, n_params, *_) = result
    dims = args["n_input_dims"], args["n_output_dims"]
    if n_in != -(-dims[0] // 16) * 16 and n_in != dims[0]:
        return f"{n_in} inputs"
    wanted = lambda x, **_: perceptron(  # noqa: E731
        inputs(x, dims[0]), params.double().numpy(), dims, args["n_neurons"], args["n_hidden_layers"]
    )
    return equals(wanted)(args, out) if len(params) == n_params else "the number of parameters is wrong"


def run_both(x: Tensor, n_output_dims: int, n_frequencies: int, n_neurons: int, n_hidden_layers: int) -> Any:
    encoding = {"otype": "Frequency", "n_frequencies": n_frequencies}
    network = {"otype": "FullyFusedMLP", "n_neurons": n_neurons, "n_hidden_layers": n_hidden_layers}
    module = tcnn.NetworkWithInputEncoding(2, n_output_dims, encoding, network)
    return module(x), module.params.detach()


@careful
def both_of(args: Args, result: Any) -> str:
    def wanted(x: Array, **_: Any) -> Array:
        encoded = frequencies(x, args["n_frequencies"])
        dims = encoded.shape[1], args["n_output_dims"]
        return perceptron(encoded, result[1].double().numpy(), dims, args["n_neurons"], args["n_hidden_layers"])

    return equals(wanted, close=1e-3)(args, result[0])


def run_initial(seed: int, n_neurons: int) -> Tensor:
    network = networks.build(16, 4, {"n_neurons": n_neurons, "n_hidden_layers": 1})
    assert network.hyperparams()["n_neurons"] == n_neurons
    native = modules.Native(encodings.build(16, {"otype": "Identity"}), network)
    return native.initial_params(seed)


@careful
def within_bounds(args: Args, params: Tensor) -> str:
    width = args["n_neurons"]
    most = torch.cat([torch.full((16 * width,), math.sqrt(6 / (16 + width)))] * 2)
    if params.shape != most.shape:
        return f"shape {list(params.shape)}"
    return "" if bool((params.abs() <= most * 1.001).all()) and bool((params != 0).any()) else "beyond Xavier's bound"


# ---- the rest


def run_options(whole: int, number: float) -> Any:
    config = options.Options({"whole": whole, "number": number, "kind": "b", "off": False}, "A thing", "Thing")
    found = config.whole("whole", 1, low=1, high=9), config.number("number", 0.5), config.choice("kind", "a", "ab")
    config.refuse("off", False)
    config.finish()
    return [*found, config.value("none", 7)]


@careful
def options_hold(args: Args, found: Any) -> str:
    sound = 1 <= found[0] <= 9 and math.isfinite(found[1]) and found[:2] == [args["whole"], args["number"]]
    return "" if sound and found[2:] == ["b", 7] else f"read {found}"


def run_scaled(x: Tensor, weight: Tensor, loss_scale: float) -> Any:
    if x.dtype != weight.dtype or x.dtype != torch.float32 or x.device != weight.device or weight.shape != (3, 2):
        raise ValueError("this function takes `x` [n, 3] and `weight` [3, 2]")
    if x.ndim != 2 or x.shape[1] != 3:
        raise ValueError("this function takes `x` [n, 3]")
    own = x.clone().requires_grad_()
    product = lambda a, b: a @ b  # noqa: E731
    out = precision.with_loss_scale(product, loss_scale, own, weight, exact=product)
    out.sum().backward()
    return out.detach(), own.grad


def run_dtypes(half: int) -> Any:
    before = precision.usual_dtype(torch.device("cpu"))
    try:
        tcnn.set_cpu_dtype((torch.float32, torch.float16, torch.float64)[half % 3])
        return [str(tcnn.Encoding(1, {"otype": "Identity"})(torch.zeros(2, 1)).dtype)]
    finally:
        tcnn.set_cpu_dtype(before)


def run_idle(device: int) -> Any:
    tcnn.free_temporary_memory()
    return tcnn.supports_jit_fusion(device)


CASES = [
    *fuzz_tinycudann_encodings.CASES,
    Case(
        tuple(
            f"{TCNN}.{name}"
            for name in (
                "modules.Network",
                "modules.Module.extra_repr",
                "modules.Native",
                "modules.Native.hyperparams",
                "modules.Native.n_input_dims",
                "modules.Native.n_output_dims",
                "modules.Native.n_params",
                "modules.Native.name",
                "networks.Perceptron",
                "networks.Perceptron.hyperparams",
                "networks.Perceptron.layers",
            )
        ),
        network_args,
        run_network,
        holds=network_of,
        sizes=FEW,
    ),
    Case(
        (f"{TCNN}.modules.NetworkWithInputEncoding",),
        lambda rng, size: {
            **points(2)(rng, size),
            "n_output_dims": 3,
            "n_frequencies": 3,
            "n_neurons": 16,
            "n_hidden_layers": 1,
        },
        run_both,
        ("x",),
        holds=both_of,
        sizes=FEW,
    ),
    Case(
        (
            f"{TCNN}.networks.build",
            f"{TCNN}.networks.Perceptron.bounds",
            f"{TCNN}.modules.Native.initial_params",
        ),
        lambda *_: {"seed": 3, "n_neurons": 16},
        run_initial,
        holds=within_bounds,
        sizes=(USUAL,),
    ),
    Case(
        tuple(
            f"{TCNN}.options.Options{name}"
            for name in ("", ".choice", ".finish", ".number", ".refuse", ".value", ".whole")
        ),
        lambda *_: {"whole": 3, "number": 0.25},
        run_options,
        holds=options_hold,
        sizes=(USUAL,),
    ),
    Case(
        (f"{TCNN}.options.next_multiple",),
        lambda *_: {"value": 13, "of": 4},
        options.next_multiple,
        holds=lambda args, found: (
            ""
            if found % args["of"] == 0 and 0 <= found - args["value"] < args["of"]
            else f"{found} is not the next multiple"
        ),
        sizes=(USUAL,),
    ),
    Case(
        (f"{TCNN}.precision.with_loss_scale",),
        lambda rng, size: {"x": rand(rng, size.samples, 3), "weight": rand(rng, 3, 2), "loss_scale": 8.0},
        run_scaled,
        holds=equals(lambda x, weight, loss_scale: (x @ weight, np.broadcast_to(weight.sum(-1), x.shape))),
    ),
    Case(
        (f"{TCNN}.precision.set_cpu_dtype", f"{TCNN}.precision.usual_dtype"),
        lambda *_: {"half": 1},
        run_dtypes,
        holds=lambda args, found: (
            "" if found == [f"torch.float{(32, 16)[args['half'] % 3]}"] else f"outputs are {found}"
        ),
        sizes=(USUAL,),
    ),
    Case(
        (f"{TCNN}.modules.free_temporary_memory", f"{TCNN}.modules.supports_jit_fusion"),
        lambda *_: {"device": 0},
        run_idle,
        holds=lambda _, found: "" if found is False else "there is no fusion here",
        sizes=(USUAL,),
    ),
    Case(
        (f"{TCNN}.install",),
        lambda *_: {"there": 0},
        fuzz_compat_install.run_install(tcnn, "tinycudann"),
        holds=fuzz_compat_install.installed,
        sizes=(USUAL,),
    ),
]

"""Fuzz cases of `raymine.compat.tinycudann`: the modules, with the numbers of their dictionaries as arguments."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.compat import tinycudann as tcnn
from raymine.compat.tinycudann import encodings, grids, modules, networks, options, precision
from support import fuzz_compat_install
from support.fuzz import USUAL, Args, Case, Size
from support.fuzz_expect import Array, careful, equals, require
from support.fuzz_kernels import rand

TCNN = "raymine.compat.tinycudann"
FEW = (USUAL, Size(1, 1), Size(3, 0))


def points(dims: int) -> Any:
    return lambda rng, size: {"x": rand(rng, size.samples, dims)}


def inputs(x: Array, dims: int) -> Array:
    """Inputs of a module. They may have any real type, and are converted to float32."""
    require(x.ndim == 2 and x.shape[1] == dims and x.dtype.kind in "fib", "x")
    return x.astype(np.float32).astype(np.float64)


def encode(dims: int, **config: Any) -> Any:
    """A module with the numbers of its dictionary as further arguments, evaluated at x."""
    return lambda x, **numbers: tcnn.Encoding(dims, {**config, **numbers})(x)


# ---- formulas


def identity(x: Array, scale: float, offset: float) -> Array:
    return inputs(x, 3) * scale + offset


def frequencies(x: Array, n_frequencies: int) -> Array:
    angle = inputs(x, 2)[:, :, None] * 2.0 ** np.arange(n_frequencies) * math.pi
    return np.stack((np.sin(angle), np.cos(angle)), -1).reshape(len(x), 4 * n_frequencies)


def triangles(x: Array, n_frequencies: int) -> Array:
    k = np.arange(n_frequencies)
    v = inputs(x, 2)[:, :, None] * 2.0 ** (k - 1) + k / 4
    return (4 * np.abs(v - np.floor(v) - 0.5) - 1).reshape(len(x), 2 * n_frequencies)


@careful
def blobs(args: Args, result: Tensor) -> str:
    """The bins of an input in 0..1 hold all of the kernel, and the most around the input."""
    x, n = args["x"], args["n_bins"]
    inputs(x.numpy(), 2)
    if result.shape != (len(x), 2 * n):
        return f"shape {list(result.shape)}"
    bins = result.detach().double().view(len(x), 2, n)
    usual = (x >= 0) & (x < 1) if x.dtype != torch.bool else torch.zeros_like(x)
    if n < 2 or not usual.any():
        return ""
    whole = (bins.sum(-1) - 1).abs() < 1e-4
    place = (x.double() * n).long().clamp(0, n - 1)
    most = bins.gather(-1, place[..., None])[..., 0] >= bins.amax(-1) - 1e-4
    return "" if bool((whole & most | ~usual).all()) else "the bins do not hold the kernel around the input"


@careful
def harmonic(args: Args, result: Tensor) -> str:
    """The constant band is that of the sphere, and the linear band is proportional to the direction."""
    x, degree = args["x"], args["degree"]
    direction = 2 * inputs(x.numpy(), 3) - 1
    if result.shape != (len(x), degree**2):
        return f"shape {list(result.shape)}"
    wanted = np.full((len(x), 1), 0.28209479177387814)
    if degree > 1:
        wanted = np.concatenate((wanted, 0.4886025119029199 * direction[:, [1, 2, 0]] * (-1, 1, -1)), -1)
    finite = np.isfinite(direction).all(-1) & (np.abs(direction) < 1e6).all(-1)
    found = result.detach().double().numpy()[:, : wanted.shape[1]]
    return "" if np.allclose(found[finite], wanted[finite], atol=1e-4) else "the first bands are wrong"


# ---- grids


def grid_args(dims: int, **more: Any) -> Any:
    numbers = {"n_levels": 2, "n_features_per_level": 2, "log2_hashmap_size": 6, "base_resolution": 3}
    return lambda rng, size: {**points(dims)(rng, size), **numbers, "per_level_scale": 1.5, **more}


def run_grid(dims: int, **config: Any) -> Any:
    def run(x: Tensor, **numbers: Any) -> Tensor:
        module = tcnn.Encoding(dims, {"otype": "Grid", **config, **numbers})
        fill(module)
        return module(x)

    return run


def fill(module: tcnn.Module) -> Array:
    """Parameters that differ a lot, in place. They are a function of their position."""
    values = torch.sin(torch.arange(len(module.params)) * 0.7)
    module.params.data.copy_(values)
    return values.double().numpy()


def looked_up(dims: int, kind: str, interpolation: str) -> Any:
    """Interpolation in a grid, point by point and corner by corner."""

    def expected(x: Array, **n: Any) -> Array:
        x = np.clip(inputs(x, dims), 0.0, 1.0)
        features, table_at = int(n["n_features_per_level"]), 0
        out = np.zeros((len(x), int(n["n_levels"]) * features))
        for level in range(int(n["n_levels"])):
            scale = np.float64(n["base_resolution"] * np.exp2(level * np.log2(n["per_level_scale"])) - 1)
            res = math.ceil(scale) + 1
            most = {"Hash": 1 << int(n["log2_hashmap_size"]), "Tiled": n["base_resolution"] ** dims}.get(kind, 1 << 40)
            entries = int(min(-(-(res**dims) // 8) * 8, most))
            for i, point in enumerate(x):
                if np.isnan(point).any():
                    out[i] = np.nan
                    continue
                at = point * scale + 0.5
                cell, fraction = np.floor(at).astype(np.int64), at - np.floor(at)
                if interpolation == "Smoothstep":
                    fraction = fraction**2 * (3 - 2 * fraction)
                for corner in range(1 << dims):
                    bits = np.array([corner >> d & 1 for d in range(dims)])
                    row = row_of([int(v) for v in cell + bits], res, entries, kind == "Hash")
                    weight = np.prod(np.where(bits, fraction, 1 - fraction))
                    place = (table_at + row) * features + np.arange(features)
                    out[i, level * features : (level + 1) * features] += weight * np.sin(place * 0.7)
            table_at += entries
        return out

    return expected


def interpolated(dims: int, kind: str, interpolation: str) -> Any:
    """The property of a grid. In float32, a point has no exact place in cells that are too small; then only a limit."""
    plainly = equals(looked_up(dims, kind, interpolation), close=1e-3)

    def holds(args: Args, result: Tensor) -> str:
        if args["base_resolution"] * args["per_level_scale"] ** (args["n_levels"] - 1) < 1 << 16:
            return plainly(args, result)
        width = args["n_levels"] * args["n_features_per_level"]
        sound = result.shape == (len(args["x"]), width) and not bool((result.abs() > 1 + 1e-4).any())
        return "" if sound else "a value is not between those of its vertices"

    return holds


def row_of(vertex: list[int], res: int, entries: int, hash: bool) -> int:
    """The row of a vertex, by the docstring of `grids`."""
    if hash and res ** len(vertex) > entries:
        found = 0
        for v, prime in zip(vertex, grids.HASH_PRIMES, strict=False):
            found ^= (v * prime) & 0xFFFFFFFF
        return found % entries
    found, stride = 0, 1
    for v in vertex:
        if stride > entries:
            break
        found, stride = found + v * stride, stride * res
    return found % entries


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


def run_composite(x: Tensor, begin: int, dims: int, n_frequencies: int, n_bins: int) -> Tensor:
    nested = [
        {"otype": "Frequency", "dims_to_encode_begin": begin, "n_dims_to_encode": dims, "n_frequencies": n_frequencies},
        {"otype": "Identity", "dims_to_encode_begin": 0, "n_dims_to_encode": 2},
        {"otype": "OneBlob", "dims_to_encode_begin": 0, "n_dims_to_encode": 1, "n_bins": n_bins},
        {"otype": "Empty", "dims_to_encode_begin": 0, "n_dims_to_encode": 1},
    ]
    return tcnn.Encoding(3, {"otype": "Composite", "nested": nested})(x)


@careful
def composed(args: Args, result: Tensor) -> str:
    """The columns are those of the nested encodings, one after another."""
    n, dims, begin = args["n_frequencies"], args["dims"], args["begin"]
    require(begin >= 0 and dims >= 0 and begin + dims <= 3, "dims")
    wide = 2 * n * dims
    if result.shape != (len(args["x"]), wide + 2 + args["n_bins"]):
        return f"shape {list(result.shape)}"

    def wanted(x: Array, **_: Any) -> Array:
        x = inputs(x, 3)
        angle = x[:, begin : begin + dims, None] * 2.0 ** np.arange(n) * math.pi
        return np.concatenate((np.stack((np.sin(angle), np.cos(angle)), -1).reshape(len(x), wide), x[:, :2]), 1)

    return equals(wanted, close=1e-3)(args, result[:, : wide + 2])


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


BASE = tuple(
    f"{TCNN}.{name}"
    for name in (
        "modules.Module",
        "modules.Module.forward",
        "modules.Encoding",
        "encodings.build",
        "encoder.Encoder",
        "encoder.Encoder.padded",
        "encoder.Encoder.bounds",
        "encoder.Encoder.hyperparams",
    )
)


def formula(name: str) -> tuple[str, ...]:
    return f"{TCNN}.encodings.{name}", f"{TCNN}.encodings.{name}.formula"


CASES = [
    Case(
        (*formula("IdentityEncoder"), *BASE),
        lambda rng, size: {**points(3)(rng, size), "scale": 2.0, "offset": 0.5},
        encode(3, otype="Identity"),
        ("x",),
        holds=equals(identity),
        sizes=FEW,
    ),
    Case(
        formula("FrequencyEncoder"),
        lambda rng, size: {**points(2)(rng, size), "n_frequencies": 4},
        encode(2, otype="Frequency"),
        holds=equals(frequencies, close=1e-3),
        sizes=FEW,
    ),
    Case(
        formula("TriangleWaveEncoder"),
        lambda rng, size: {**points(2)(rng, size), "n_frequencies": 4},
        encode(2, otype="TriangleWave"),
        holds=equals(triangles, close=1e-3),
        sizes=FEW,
    ),
    Case(
        formula("OneBlobEncoder"),
        lambda rng, size: {**points(2)(rng, size), "n_bins": 8},
        encode(2, otype="OneBlob"),
        holds=blobs,
        sizes=FEW,
    ),
    Case(
        formula("SphericalHarmonicsEncoder"),
        lambda rng, size: {**points(3)(rng, size), "degree": 3},
        encode(3, otype="SphericalHarmonics"),
        holds=harmonic,
        sizes=FEW,
    ),
    Case(
        (
            f"{TCNN}.encodings.CompositeEncoder",
            f"{TCNN}.encodings.CompositeEncoder.padded",
            f"{TCNN}.encodings.CompositeEncoder.bounds",
            f"{TCNN}.encodings.CompositeEncoder.hyperparams",
            *formula("EmptyEncoder"),
        ),
        lambda rng, size: {**points(3)(rng, size), "begin": 1, "dims": 2, "n_frequencies": 2, "n_bins": 4},
        run_composite,
        holds=composed,
        sizes=FEW,
    ),
    Case(
        tuple(f"{TCNN}.grids.GridEncoder{name}" for name in ("", ".bounds", ".hyperparams")),
        grid_args(3),
        run_grid(3),
        ("x",),
        holds=interpolated(3, "Hash", "Linear"),
        sizes=FEW,
        label="by the op",
    ),
    Case(
        (f"{TCNN}.grids.interpolate",),
        grid_args(2),
        run_grid(2, type="Tiled", interpolation="Smoothstep"),
        holds=interpolated(2, "Tiled", "Smoothstep"),
        sizes=FEW,
        label="in torch",
    ),
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

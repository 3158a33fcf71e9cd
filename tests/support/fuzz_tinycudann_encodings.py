"""Fuzz cases of the encodings of `raymine.compat.tinycudann`: formulas, grids and compositions of encodings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raymine.compat import tinycudann as tcnn
from raymine.compat.tinycudann import grids
from support.fuzz import USUAL, Args, Case, Size
from support.fuzz_arguments import rand
from support.fuzz_expect import Array, careful, equals, require

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


# ---- compositions


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
]

"""Encodings of tiny-cuda-nn: grids against a plain loop, others against formulas; gradients; edge cases; errors."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raymine.compat import tinycudann as tcnn
from raymine.compat.tinycudann import encodings
from raymine.compat.tinycudann.grids import GridEncoder, GridLayout, interpolate
from raymine.errors import ConfigError
from raymine.kernels import dispatch
from support.device import TRITON_DEVICE

PRIMES = (1, 2654435761, 805459861, 3674653429)
GRID = {"otype": "HashGrid", "n_levels": 8, "log2_hashmap_size": 8, "base_resolution": 4, "per_level_scale": 1.4}
SMALL = {"n_levels": 3, "n_features_per_level": 2, "log2_hashmap_size": 6, "base_resolution": 3, "per_level_scale": 1.7}


def encoded(config: dict[str, Any], rows: list[list[float]]) -> list[list[float]]:
    """Output of an encoding on the CPU as nested lists."""
    found: list[list[float]] = tcnn.Encoding(len(rows[0]), config).to("cpu")(torch.tensor(rows)).tolist()
    return found


def encoding(dims: int, dtype: torch.dtype | None = None, **options: object) -> tcnn.Encoding:
    """A grid encoding on the CPU whose table holds normally distributed numbers."""
    made = tcnn.Encoding(dims, {**SMALL, **options}, dtype=dtype).to("cpu")
    with torch.no_grad():
        made.params.copy_(torch.randn(made.params.shape, generator=torch.Generator().manual_seed(1)))
    return made


def by_loop(point: list[float], params: list[float], dims: int, kind: str, interpolation: str) -> list[float]:
    """The grid encoding of one point as plain loops."""
    out, first = [], 0
    for level in range(3):
        scale = 3 * 1.7**level - 1
        res = math.ceil(scale) + 1
        entries = (res**dims + 7) // 8 * 8
        entries = {"Hash": min(entries, 64), "Tiled": min(entries, 3**dims)}.get(kind, entries)
        at = [x * scale + 0.5 for x in point]
        cell = [math.floor(a) for a in at]
        part = [a - c for a, c in zip(at, cell, strict=True)]
        if interpolation == "Smoothstep":
            part = [f * f * (3 - 2 * f) for f in part]
        value = [0.0, 0.0]
        for corner in itertools.product((0, 1), repeat=dims):
            if interpolation == "Nearest":
                weight = 1.0 if not any(corner) else 0.0
            else:
                weight = math.prod(f if bit else 1 - f for f, bit in zip(part, corner, strict=True))
            vertex = [c + bit for c, bit in zip(cell, corner, strict=True)]
            if kind == "Hash" and res**dims > entries:
                row = 0
                for v, prime in zip(vertex, PRIMES, strict=False):
                    row ^= v * prime % 2**32
            else:
                row, stride = 0, 1
                for v in vertex:
                    if stride <= entries:
                        row += v * stride
                        stride *= res
            row = first + row % entries
            for f in range(2):
                value[f] += weight * params[2 * row + f]
        out += value
        first += entries
    assert first * 2 == len(params)
    return out


@pytest.mark.parametrize("interpolation", ["Linear", "Smoothstep", "Nearest"])
@pytest.mark.parametrize("kind", ["Hash", "Dense", "Tiled"])
@pytest.mark.parametrize("dims", [2, 3, 4])
def test_every_grid_equals_the_loop(dims: int, kind: str, interpolation: str) -> None:
    made = encoding(dims, otype=f"{kind}Grid", interpolation=interpolation)
    points = torch.rand(6, dims, generator=torch.Generator().manual_seed(dims))
    points[0], points[1] = 0.0, 1.0
    expected = [by_loop(p, made.params.tolist(), dims, kind, interpolation) for p in points.tolist()]
    got = made(points)
    assert got.dtype == torch.float32
    assert torch.allclose(got, torch.tensor(expected), atol=2e-4)
    same = encoding(dims, otype="grid", type=kind.upper(), interpolation=interpolation.lower())
    assert torch.equal(same(points), got)


def test_dense_grid_matches_hand_computed_value_and_gradient() -> None:
    """2-D, scale 3: (0.5, 0.25) lies at (2.0, 1.25); rows are x + 4 y, linear in both, so the value is 2 + 4 * 1.25."""
    config = {"otype": "DenseGrid", "n_levels": 1, "n_features_per_level": 1, "base_resolution": 4}
    made = tcnn.Encoding(2, config).to("cpu")
    assert made.params.shape == (16,)
    with torch.no_grad():
        made.params.copy_(torch.arange(16.0))
    x = torch.tensor([[0.5, 0.25]], requires_grad=True)
    assert made(x).item() == pytest.approx(7.0)
    # One cell is 1/3 wide: 3 rows further per unit of x, 12 per unit of y.
    assert torch.autograd.grad(made(x), x)[0].tolist() == [pytest.approx([3.0, 12.0])]


def test_sizes_of_the_original() -> None:
    assert tcnn.Encoding(3, {"otype": "HashGrid"}).params.numel() == 2 * (16**3 + 32**3 + 64**3 + 13 * 2**19)
    growth = math.exp(math.log(2048 / 16) / 15)
    assert tcnn.Encoding(3, {"otype": "HashGrid", "per_level_scale": growth}).params.numel() == 12_196_240
    dense = tcnn.Encoding(2, {"otype": "DenseGrid", "n_levels": 5})
    assert dense.params.numel() == 2 * sum(side**2 for side in (16, 32, 64, 128, 256))
    assert tcnn.Encoding(2, {"otype": "TiledGrid", "n_levels": 4}).params.numel() == 2 * 4 * 16**2
    assert tcnn.Encoding(2, {"otype": "Grid", "n_features": 8, "n_features_per_level": 4}).n_output_dims == 8


def test_supported_layouts_use_the_kernel_and_match_interpolation() -> None:
    def spec(dims: int, **options: object) -> object:
        encoder = encodings.build(dims, {"otype": "HashGrid", **SMALL, **options})
        assert isinstance(encoder, GridEncoder)
        return encoder.layout.spec

    assert spec(3) is not None
    assert spec(3, type="Dense") is not None
    for dims, options in ((2, {}), (4, {}), (3, {"type": "Tiled"}), (3, {"base_resolution": 1}), (3, {"n_levels": 33}),
                          (3, {"log2_hashmap_size": 3}), (3, {"per_level_scale": 0.9})):  # fmt: skip
        assert spec(dims, **options) is None, options
    layout = GridLayout(3, "Dense", 1, 2, 19, 300, 2.0)
    assert layout.spec is None
    for kind in ("Hash", "Dense"):
        made = encoding(3, otype=f"{kind}Grid")
        grid = made.native_tcnn_module.encoder
        assert isinstance(grid, GridEncoder)
        x = torch.rand(40, 3)
        assert torch.allclose(made(x), interpolate(x, made.params.view(-1, 2), grid.layout, "Linear"), atol=1e-4)


@pytest.mark.parametrize("interpolation", ["Linear", "Smoothstep"])
@pytest.mark.parametrize(("dims", "kind"), [(2, "Hash"), (3, "Hash"), (4, "Hash"), (2, "Dense"), (3, "Tiled")])
def test_gradients_of_two_orders(dims: int, kind: str, interpolation: str) -> None:
    native = encoding(dims, otype=f"{kind}Grid", interpolation=interpolation, n_levels=2).native_tcnn_module
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(2, dims, dtype=torch.float64, generator=generator).requires_grad_()
    params = torch.randn(native.n_params(), dtype=torch.float64, generator=generator).requires_grad_()

    def function(x: Tensor, params: Tensor) -> Tensor:
        return native(x, params, False, 1.0)

    assert torch.autograd.gradcheck(function, (x, params), fast_mode=True)
    assert torch.autograd.gradgradcheck(function, (x, params), fast_mode=True)


def test_nearest_interpolation_has_zero_input_gradient() -> None:
    made = encoding(3, otype="HashGrid", interpolation="Nearest")
    x = torch.rand(5, 3, requires_grad=True)
    to_x, to_params = torch.autograd.grad(made(x).sum(), (x, made.params))
    assert torch.equal(to_x, torch.zeros(5, 3))
    assert to_params.sum().item() == pytest.approx(5 * 3 * 2)


@pytest.mark.parametrize("backend", ["reference", "cpu", "gpu"])
def test_a_distance_field_learns_the_length_of_its_gradient(backend: str) -> None:
    if backend == "gpu":
        pytest.importorskip("triton")
    device = TRITON_DEVICE if backend == "gpu" else "cpu"
    made = encoding(3, torch.float32, otype="HashGrid", n_levels=1).to(device)
    x = torch.rand(16, 3, device=device, requires_grad=True)
    optimiser, losses = torch.optim.Adam([made.params], 0.02), []
    with dispatch.force(backend):  # type: ignore[arg-type]
        for _ in range(8):
            (slope,) = torch.autograd.grad(made(x).sum(), x, create_graph=True)
            loss = ((slope.norm(dim=-1) - 1) ** 2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("dims", [2, 3])
def test_half_precision_equals_float32_with_a_rounded_table(dims: int) -> None:
    made = encoding(dims, torch.float16, otype="HashGrid")
    whole = encoding(dims, torch.float32, otype="HashGrid")
    with torch.no_grad():
        whole.params.copy_(made.params.half().float())
    x = torch.rand(20, dims, requires_grad=True)
    assert made(x).dtype == torch.float16
    assert torch.allclose(made(x).float(), whole(x), atol=2e-3)
    grads = torch.autograd.grad(made(x).float().sum(), (x, made.params))
    assert [g.dtype for g in grads] == [torch.float32, torch.float32]
    expected = torch.autograd.grad(whole(x).sum(), (x, whole.params))
    assert all(torch.allclose(g, e, rtol=1e-3, atol=1e-3) for g, e in zip(grads, expected, strict=True))


def test_small_gradients_survive_half_precision() -> None:
    """float16 rounds values below 6e-8 to 0, so gradients between network and grid are float32 at any loss scale."""
    network = {"otype": "CutlassMLP", "n_neurons": 16, "n_hidden_layers": 1, "activation": "None"}
    made = tcnn.NetworkWithInputEncoding(3, 1, {"otype": "HashGrid", **SMALL}, network).to("cpu")
    x = torch.rand(9, 3)
    tcnn.set_cpu_dtype(torch.float16)
    try:
        assert made.dtype == torch.float16
        assert made.loss_scale == 128.0
        half = torch.autograd.grad(made(x), made.params, torch.full((9, 1), 1e-7, dtype=torch.float16))[0]
        made.loss_scale = 1.0
        unscaled = torch.autograd.grad(made(x), made.params, torch.full((9, 1), 1e-7, dtype=torch.float16))[0]
    finally:
        tcnn.set_cpu_dtype(torch.float32)
    # 2^-23 is 1e-7 rounded to float16.
    whole = torch.autograd.grad(made(x), made.params, torch.full((9, 1), 2.0**-23))[0]
    table = slice(made.native_tcnn_module.network.n_params, None)  # type: ignore[union-attr]
    assert float(whole[table].abs().max()) > 0
    for found in (half, unscaled):
        assert float((found - whole)[table].norm()) < 0.01 * float(whole[table].norm())


def test_gradients_of_gradients_pass_through_half_precision() -> None:
    network = {"otype": "CutlassMLP", "n_neurons": 16, "n_hidden_layers": 1, "activation": "Softplus"}
    made = tcnn.NetworkWithInputEncoding(3, 1, {"otype": "HashGrid", **SMALL}, network).to("cpu")
    with torch.no_grad():
        made.params.copy_(torch.randn(made.params.shape, generator=torch.Generator().manual_seed(2)) * 0.3)
    x, results = torch.rand(12, 3, requires_grad=True), []
    for dtype in (torch.float16, torch.float32):
        tcnn.set_cpu_dtype(dtype)
        try:
            (slope,) = torch.autograd.grad(made(x).float().sum(), x, create_graph=True)
            results.append((slope.detach(), *torch.autograd.grad(slope.square().sum(), (x, made.params))))
        finally:
            tcnn.set_cpu_dtype(torch.float32)
    for half, whole in zip(*results, strict=True):
        assert float((half - whole).norm()) < 2e-2 * float(whole.norm())


@pytest.mark.parametrize("dims", [2, 3])
def test_grid_handles_empty_nan_and_out_of_range_inputs(dims: int) -> None:
    made = encoding(dims, otype="HashGrid")
    assert made(torch.rand(0, dims)).shape == (0, 6)
    x = torch.full((4, dims), 0.5)
    x[0, 0], x[1, 0], x[2, 0] = math.nan, math.inf, -7.0
    x.requires_grad_()
    out = made(x)
    assert bool(out[0].isnan().all())
    inside = torch.full((2, dims), 0.5)
    inside[0, 0], inside[1, 0] = 1.0, 0.0
    assert torch.equal(out[1:3], made(inside))
    to_x, to_params = torch.autograd.grad(out[1:].sum() + out[0].nansum(), (x, made.params))
    assert bool(to_params.isfinite().all())
    assert torch.equal(to_x[0], torch.zeros(dims))
    assert to_x[1, 0] == to_x[2, 0] == 0


@pytest.mark.parametrize(
    ("dims", "options", "message"),
    [
        (5, {}, "encodes 2, 3 or 4 dimensions, got `n_input_dims` = 5"),
        (1, {}, "encodes 2, 3 or 4 dimensions"),
        (3, {"type": "Octree"}, "`type` of HashGrid must be one of Hash, Dense, Tiled, got 'Octree'"),
        (3, {"n_features_per_level": 3}, "`n_features_per_level` of HashGrid must be 1, 2, 4 or 8, got 3"),
        (3, {"n_levels": 0}, r"`n_levels` of HashGrid must be a whole number in 1 .. 128, got 0"),
        (3, {"n_levels": 2, "n_features": 4}, "`n_features` and `n_levels`"),
        (3, {"n_features": 5, "n_levels": None}, "`n_features` and `n_levels`"),
        (3, {"log2_hashmap_size": 40}, "`log2_hashmap_size` of HashGrid must be a whole number in 0 .. 31"),
        (3, {"base_resolution": 2.5}, "`base_resolution` of HashGrid must be a whole number"),
        (3, {"per_level_scale": 0}, "`per_level_scale` of HashGrid must be above 0"),
        (3, {"per_level_scale": "two"}, "`per_level_scale` of HashGrid must be a finite number, got 'two'"),
        (3, {"interpolation": "Cubic"}, "`interpolation` of HashGrid must be one of Linear, Smoothstep, Nearest"),
        (3, {"hash": "Prime"}, "`hash` of HashGrid is supported with the value 'CoherentPrime' only, got 'Prime'"),
        (3, {"stochastic_interpolation": True}, "`stochastic_interpolation` of HashGrid is supported with .*False"),
        (3, {"type": "Dense", "base_resolution": 4096}, "would have .* parameters"),
    ],
)
def test_errors_name_the_option(dims: int, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tcnn.Encoding(dims, {"otype": "HashGrid", **options})
    with pytest.raises(ConfigError, match="`n_features` of HashGrid must be a multiple of 2, got 5"):
        tcnn.Encoding(3, {"otype": "HashGrid", "n_features": 5})


def test_unsupported_options_at_their_defaults_are_accepted() -> None:
    tcnn.Encoding(2, {"otype": "Grid", "type": "tile", "hash": "coherentprime", "stochastic_interpolation": False})


def test_identity() -> None:
    assert encoded({"otype": "Identity"}, [[0.25, -3.0]]) == [[0.25, -3.0]]
    assert encoded({"otype": "identity", "scale": 2, "offset": -1.0}, [[0.25, 1.0]]) == [[-0.5, 1.0]]


def test_frequency() -> None:
    x, y = 0.3, -0.7
    expected = [f(2**k * math.pi * v) for v in (x, y) for k in range(3) for f in (math.sin, math.cos)]
    assert encoded({"otype": "Frequency", "n_frequencies": 3}, [[x, y]]) == [pytest.approx(expected, abs=1e-5)]
    assert encoded({"otype": "FREQUENCY", "n_frequencies": 1}, [[0.5]]) == [pytest.approx([1.0, 0.0], abs=1e-6)]
    assert tcnn.Encoding(3, {"otype": "Frequency"}).n_output_dims == 72


def test_triangle_wave() -> None:
    # v = x / 2, x + 1/4, 2 x + 1/2; x = 0.3: 0.15, 0.55, 1.1, so 4 * 0.35 - 1, 4 * 0.05 - 1, 4 * 0.4 - 1.
    assert encoded({"otype": "TriangleWave", "n_frequencies": 3}, [[0.3]]) == [
        pytest.approx([0.4, -0.8, 0.6], abs=1e-6)
    ]

    def wave(x: float, k: int) -> float:
        v = 2.0 ** (k - 1) * x + k / 4
        return 4 * abs(v % 1 - 0.5) - 1

    expected = [wave(x, k) for x in (0.11, -0.83) for k in range(12)]
    assert encoded({"otype": "TriangleWave"}, [[0.11, -0.83]]) == [pytest.approx(expected, abs=2e-4)]


def test_one_blob() -> None:
    def blob(u: float) -> float:
        return 15 / 16 * (1 - u * u) ** 2 if abs(u) < 1 else 0.0

    def share(x: float, k: int, n: int, steps: int = 4000) -> float:
        """Integral of the periodic kernel over bin k, by the midpoint rule."""
        width = 1 / n / steps
        places = (k / n + (i + 0.5) * width for i in range(steps))
        return sum(blob(n * (p - x + turn)) for p in places for turn in (-1, 0, 1)) * n * width

    for x, n in ((0.3, 4), (0.02, 4), (0.97, 8), (0.5, 2)):
        got = encoded({"otype": "OneBlob", "n_bins": n}, [[x]])[0]
        assert got == pytest.approx([share(x, k, n) for k in range(n)], abs=1e-3)
        assert sum(got) == pytest.approx(1.0, abs=1e-6)
    # In the middle of its bin, u reaches 1/2 on both sides: 15/8 (1/2 - 1/12 + 1/160).
    assert encoded({"n_bins": 4}, [[0.375]])[0][1] == pytest.approx(15 / 8 * (0.5 - 1 / 12 + 1 / 160), abs=1e-6)


def test_spherical_harmonics_by_hand() -> None:
    """The polynomials of bands 0 to 3, with their constants written as square roots."""
    x, y, z = 2 / 7, -3 / 7, 6 / 7
    root = math.sqrt
    expected = [
        0.5 / root(math.pi),
        -root(3 / (4 * math.pi)) * y,
        root(3 / (4 * math.pi)) * z,
        -root(3 / (4 * math.pi)) * x,
        root(15 / (4 * math.pi)) * x * y,
        -root(15 / (4 * math.pi)) * y * z,
        root(5 / (16 * math.pi)) * (3 * z * z - 1),
        -root(15 / (4 * math.pi)) * x * z,
        root(15 / (16 * math.pi)) * (x * x - y * y),
        -root(35 / (32 * math.pi)) * y * (3 * x * x - y * y),
        root(105 / (4 * math.pi)) * x * y * z,
        -root(21 / (32 * math.pi)) * y * (5 * z * z - 1),
        root(7 / (16 * math.pi)) * z * (5 * z * z - 3),
        -root(21 / (32 * math.pi)) * x * (5 * z * z - 1),
        root(105 / (16 * math.pi)) * z * (x * x - y * y),
        -root(35 / (32 * math.pi)) * x * (x * x - 3 * y * y),
    ]
    at = [[(v + 1) / 2 for v in (x, y, z)]]
    for degree in range(1, 5):
        config = {"otype": "SphericalHarmonics", "degree": degree}
        assert encoded(config, at) == [pytest.approx(expected[: degree**2], abs=1e-6)]
    assert tcnn.Encoding(3, {"otype": "SphericalHarmonics"}).n_output_dims == 16


def test_spherical_harmonics_are_orthonormal_up_to_degree_8() -> None:
    """Integrals over the sphere of products, by Gauss-Legendre in z and equal angles: exact for these polynomials."""
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(10))
    angle = torch.arange(20, dtype=torch.float64) * (2 * math.pi / 20)
    z = nodes.repeat_interleave(20)
    ring = (1 - z * z).sqrt()
    directions = torch.stack([ring * angle.cos().repeat(10), ring * angle.sin().repeat(10), z], -1)
    native = tcnn.Encoding(3, {"otype": "SphericalHarmonics", "degree": 8}).native_tcnn_module
    values = native((directions + 1) / 2, torch.empty(0, dtype=torch.float64), False, 1.0)
    products = values.T @ (values * (weights.repeat_interleave(20) * 2 * math.pi / 20)[:, None])
    assert torch.allclose(products, torch.eye(64, dtype=torch.float64), atol=1e-12)


def test_composite_lays_encodings_side_by_side() -> None:
    nested: list[dict[str, Any]] = [
        {"otype": "Frequency", "n_frequencies": 2, "n_dims_to_encode": 1},
        {"otype": "Identity", "n_dims_to_encode": 2},
        {"otype": "TriangleWave", "n_frequencies": 1},
    ]
    x = [[0.1, 0.2, 0.3, 0.4, 0.6]]
    got = encoded({"otype": "Composite", "nested": nested}, x)[0]
    expected = encoded(nested[0], [[0.1]])[0] + [0.2, 0.3] + encoded(nested[2], [[0.4, 0.6]])[0]
    assert got == pytest.approx(expected)
    picked = [
        {"otype": "Identity", "n_dims_to_encode": 2, "dims_to_encode_begin": 3},
        {"otype": "Identity", "n_dims_to_encode": 1, "dims_to_encode_begin": 0},
        {"otype": "Identity", "n_dims_to_encode": 1},
    ]
    assert encoded({"otype": "composite", "nested": picked}, x) == [pytest.approx([0.4, 0.6, 0.1, 0.2])]
    # No dimension is left for the last nested encoding, so it is skipped.
    assert encoded({"otype": "Composite", "nested": [{"n_dims_to_encode": 1, "otype": "Identity"}, {}]}, [[0.5]]) == [
        [0.5]
    ]


def test_composite_pads_before_a_grid_and_keeps_parameters_in_order() -> None:
    """The features of a grid start at a multiple of `n_features_per_level`; the gap before them is filled with ones."""
    grid = {**GRID, "n_levels": 2, "n_features_per_level": 4}
    nested = [{"otype": "Identity", "n_dims_to_encode": 1}, {**grid, "n_dims_to_encode": 3}, {**grid}]
    made = tcnn.Encoding(6, {"otype": "Composite", "nested": nested}).to("cpu")
    assert made.n_output_dims == 4 + 8 + 8
    three, two = tcnn.Encoding(3, grid).to("cpu"), tcnn.Encoding(2, grid).to("cpu")
    with torch.no_grad():
        three.params.copy_(made.params[: three.params.numel()])
        two.params.copy_(made.params[three.params.numel() :])
    x = torch.rand(5, 6)
    expected = torch.cat([x[:, :1], torch.ones(5, 3), three(x[:, 1:4]), two(x[:, 4:])], 1)
    assert torch.equal(made(x), expected)


def test_composite_sums_and_multiplies() -> None:
    nested = [{"otype": "Identity", "n_dims_to_encode": 2}, {"otype": "Identity", "scale": 2.0}]
    x = [[0.1, 0.2, 0.3, 0.5]]
    assert encoded({"otype": "Composite", "reduction": "Sum", "nested": nested}, x) == [pytest.approx([0.7, 1.2])]
    assert encoded({"otype": "Composite", "reduction": "product", "nested": nested}, x) == [pytest.approx([0.06, 0.2])]


def test_aliases_and_defaults_of_encodings() -> None:
    x = torch.rand(3, 10)
    nested = [
        {"n_dims_to_encode": 3, "otype": "TriangleWave", "n_frequencies": 12},
        {"n_dims_to_encode": 5, "otype": "OneBlob", "n_bins": 4},
        {"otype": "Identity"},
    ]
    expected = tcnn.Encoding(10, {"otype": "Composite", "nested": nested}).to("cpu")(x)
    for name in ("NRC", "OneBlobFrequency"):
        assert torch.equal(tcnn.Encoding(10, {"otype": name}).to("cpu")(x), expected)
    assert tcnn.Encoding(2, {}).native_tcnn_module.hyperparams() == {"otype": "OneBlob", "n_bins": 16}
    assert encoded({"otype": "Empty"}, [[0.1, 0.2]]) == [[]]


@pytest.mark.parametrize(
    "name", ["Identity", "Frequency", "TriangleWave", "OneBlob", "SphericalHarmonics", "Composite"]
)
def test_formula_encodings_pass_gradcheck_and_gradgradcheck(name: str) -> None:
    nested = [{"otype": "Frequency", "n_frequencies": 2, "n_dims_to_encode": 2}, {"otype": "OneBlob", "n_bins": 4}]
    config = {"otype": name, **{"Composite": {"nested": nested}, "Frequency": {"n_frequencies": 3},
              "TriangleWave": {"n_frequencies": 3}, "OneBlob": {"n_bins": 4}}.get(name, {})}  # fmt: skip
    encoder = encodings.build(3, config)
    x = torch.tensor([[0.11, 0.37, 0.72], [0.58, 0.93, 0.24]], dtype=torch.float64, requires_grad=True)
    empty = torch.empty(0, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: encoder(x, empty, False, None), (x,))
    assert torch.autograd.gradgradcheck(lambda x: encoder(x, empty, False, None), (x,))


def test_constant_encoding_has_zero_input_gradient() -> None:
    x = torch.rand(4, 3, requires_grad=True)
    out = tcnn.Encoding(3, {"otype": "SphericalHarmonics", "degree": 1}).to("cpu")(x)
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], torch.zeros(4, 3))

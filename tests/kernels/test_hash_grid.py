"""The hash grid: values by hand, gradcheck of the reference, and Numba and Triton against it."""

from __future__ import annotations

import numba
import pytest
import torch

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.hash_grid import reference
from raymine.kernels.hash_grid.op import GridSpec, GrownSpec, encode, grown_scale
from support.device import TRITON_DEVICE

pytestmark = pytest.mark.usefixtures("poisoned")

TINY = GridSpec(levels=3, features=2, log2_entries=7, base=3, finest=20)
SPECS = [
    TINY,
    GridSpec(levels=1, features=1, log2_entries=9, base=4, finest=4),
    GridSpec(levels=4, features=4, log2_entries=9, base=4, finest=64),
    GridSpec(levels=2, features=8, log2_entries=6, base=3, finest=9),
]


def test_grid_layout_matches_hand_computed_sizes() -> None:
    spec = GridSpec(levels=2, features=2, log2_entries=10, base=4, finest=16)
    assert spec.scales.tolist() == pytest.approx([3.0, 15.0])
    assert spec.resolutions.tolist() == [4, 16]
    assert spec.entries.tolist() == [64, 1024]
    assert spec.offsets.tolist() == [0, 64]
    assert spec.dense.tolist() == [True, False]


def test_published_default_has_twelve_million_parameters() -> None:
    assert GridSpec().total_entries * 2 == 12_196_240


def test_encode_matches_hand_computed_point() -> None:
    """scale 3: x = 0.5 lies at 2.0, on vertex 2 with fraction 0; y = 0.25 at 1.25; z = 0 at 0.5."""
    spec = GridSpec(levels=1, features=1, log2_entries=6, base=4, finest=4)
    table = torch.arange(64, dtype=torch.float32)[:, None]
    got = encode(torch.tensor([[0.5, 0.25, 0.0]]), table, spec)
    # Vertices (2, 1..2, 0..1): index = x + 4 y + 16 z, linear in each, so the value is 2 + 4 * 1.25 + 16 * 0.5.
    assert got.item() == pytest.approx(15.0, abs=1e-5)


def test_corner_index_matches_hand_computed_hash() -> None:
    spec = GridSpec(levels=2, features=2, log2_entries=10, base=4, finest=16)
    index = reference.corner_index(torch.tensor([[3, 5, 7]]), 1, spec)
    assert index.item() == 64 + ((3 ^ (5 * 2654435761 % 2**32) ^ (7 * 805459861 % 2**32)) % 1024)


def test_reference_passes_gradcheck() -> None:
    points = torch.rand(5, 3, dtype=torch.float64, requires_grad=True)
    table = torch.randn(TINY.total_entries, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda p, t: reference.encode(p, t, TINY), (points, table))


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize(
    ("backend", "n"), [("cpu", 0), ("cpu", 1), ("cpu", 63), ("cpu", 1000), ("gpu", 0), ("gpu", 1), ("gpu", 150)]
)
def test_kernels_match_reference_output_and_gradients(spec: GridSpec, backend: str, n: int) -> None:
    device = "cpu"
    if backend == "gpu":
        pytest.importorskip("triton")
        device = TRITON_DEVICE
    points = torch.rand(n, 6, device=device)[:, ::2].requires_grad_()  # non-contiguous
    table = torch.randn(spec.total_entries, spec.features, device=device, requires_grad=True)
    grad = torch.randn(n, spec.width, device=device)
    results = {}
    for name in (backend, "reference"):
        with dispatch.force(name):  # type: ignore[arg-type]
            out = encode(points, table, spec)
            results[name] = (out.detach(), *torch.autograd.grad(out, (table, points), grad))
    for name, got, expected in zip(("out", "table", "points"), results[backend], results["reference"], strict=True):
        # Near a cell face rounding may pick the gradient of either side, so compare norms over all points.
        scale = expected.norm().clamp_min(1e-6)
        assert got.shape == expected.shape, name
        assert float((got - expected).norm() / scale) < 1e-4, name


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_half_precision_reads_a_rounded_table_and_has_float32_gradients(backend: str, precision: str) -> None:
    if backend == "gpu":
        pytest.importorskip("triton")
    device = TRITON_DEVICE if backend == "gpu" else "cpu"
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    points = torch.rand(70, 3, device=device, requires_grad=True)
    table = torch.randn(TINY.total_entries, 2, device=device, requires_grad=True)
    grad = torch.randn(70, TINY.width, device=device).to(kind)
    results = {}
    for name in (backend, "reference"):
        with dispatch.force(name):  # type: ignore[arg-type]
            out = encode(points, table, TINY, precision=precision)  # type: ignore[arg-type]
            assert out.dtype == kind
            results[name] = (out.detach().float(), *torch.autograd.grad(out, (table, points), grad))
            with torch.no_grad():
                whole = encode(points, table.to(kind).float(), TINY)
            assert torch.allclose(out.float(), whole, rtol=1e-2, atol=1e-3)
    for name, got, expected in zip(("out", "table", "points"), results[backend], results["reference"], strict=True):
        assert got.dtype == torch.float32, name
        bound = (2e-2 if precision == "bf16" else 2e-3) if name == "out" else 1e-4
        assert float((got - expected).norm() / expected.norm()) < bound, name


def test_result_does_not_depend_on_the_number_of_threads() -> None:
    spec = GridSpec(levels=2, features=2, log2_entries=8, base=4, finest=16)
    points, grad = torch.rand(4000, 3), torch.randn(4000, 4)
    table = torch.randn(spec.total_entries, 2, requires_grad=True)
    results, threads = [], numba.get_num_threads()
    try:
        for n in {1, numba.config.NUMBA_NUM_THREADS}:
            numba.set_num_threads(n)
            out = encode(points, table, spec)
            results.append((out, torch.autograd.grad(out, table, grad)[0]))
    finally:
        numba.set_num_threads(threads)
    for other in results[1:]:
        assert torch.equal(results[0][0], other[0])
        assert torch.equal(results[0][1], other[1])


def test_points_on_the_far_corner_and_outside_are_clamped() -> None:
    points = torch.tensor([[1.0, 1.0, 1.0], [2.0, -1.0, 0.5]])
    table = torch.randn(TINY.total_entries, 2)
    with dispatch.force("cpu"):
        got = encode(points, table, TINY)
    with dispatch.force("reference"):
        expected = encode(points, table, TINY)
    assert torch.allclose(got, expected, atol=1e-5)
    assert torch.equal(got[1], encode(torch.tensor([[1.0, 0.0, 0.5]]), table, TINY)[0])


@pytest.mark.parametrize("backend", ["reference", "cpu", "gpu"])
def test_outside_points_are_clamped_and_nan_stays_in_its_row(backend: str) -> None:
    if backend == "gpu":
        pytest.importorskip("triton")
    device = TRITON_DEVICE if backend == "gpu" else "cpu"
    points = torch.rand(6, 3, device=device)
    points[1], points[2, 1] = torch.tensor([1.5, -0.25, 0.5]), torch.nan
    points[3, 0] = torch.inf
    points.requires_grad_()
    table = torch.randn(TINY.total_entries, 2, device=device, requires_grad=True)
    with dispatch.force(backend):  # type: ignore[arg-type]
        out = encode(points, table, TINY)
        assert out[2].isnan().all()
        assert out[[0, 1, 3, 4, 5]].isfinite().all()
        there = torch.cat((points[:2], points[3:])).detach().clamp(0, 1)
        assert torch.allclose(encode(there, table, TINY), torch.cat((out[:2], out[3:])), atol=1e-6)
        to_table, to_points = torch.autograd.grad(out, (table, points), torch.ones_like(out))
        (alone,) = torch.autograd.grad(encode(there, table, TINY).sum(), table)
    assert torch.allclose(to_table, alone, atol=1e-5)
    assert to_points[1, :2].tolist() == [0.0, 0.0]
    assert to_points[1, 2] != 0
    assert to_points[2].tolist() == [0.0, 0.0, 0.0]
    assert to_points[3, 0] == 0


@pytest.mark.parametrize("backend", ["reference", "cpu", "gpu"])
def test_output_dtype_can_be_wider_than_the_table_precision(backend: str) -> None:
    if backend == "gpu":
        pytest.importorskip("triton")
    device = TRITON_DEVICE if backend == "gpu" else "cpu"
    points, table = torch.rand(9, 3, device=device), torch.randn(TINY.total_entries, 2, device=device)
    with dispatch.force(backend):  # type: ignore[arg-type]
        wide = encode(points, table, TINY, precision="fp16", kind=torch.float32)
        narrow = encode(points, table.half().float(), TINY)
    assert wide.dtype == torch.float32
    assert torch.allclose(wide, narrow, rtol=1e-5, atol=1e-6)


def test_invalid_arguments_raise_config_error() -> None:
    with pytest.raises(ConfigError, match=r"`positions` must have shape \[4, 3\], got \[4, 2\]"):
        encode(torch.rand(4, 2), torch.zeros(TINY.total_entries, 2), TINY)
    with pytest.raises(ConfigError, match="`table` must have shape"):
        encode(torch.rand(4, 3), torch.zeros(5, 2), TINY)
    with pytest.raises(ConfigError, match="`precision` must be fp32, fp16 or bf16, got 'half'"):
        encode(torch.rand(4, 3), torch.zeros(TINY.total_entries, 2), TINY, precision="half")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="`features` must be 1, 2, 4 or 8, got 3"):
        GridSpec(features=3)


def test_grown_spec_rounds_in_float32_and_matches_grid_spec() -> None:
    spec = GrownSpec(levels=16, features=2, log2_entries=19, base=16, growth=2.0)
    assert spec.resolutions.tolist() == [16 * 2**level for level in range(16)]
    assert spec.finest == 16 * 2**15
    assert GrownSpec(levels=4, base=16, growth=1.5).resolutions.tolist() == [16, 24, 36, 54]
    # In float32 the growth from 16 to 2048 over 15 levels ends 0.001 too low.
    assert GrownSpec(growth=128 ** (1 / 15)).scales[-1] == pytest.approx(2046.9987, abs=1e-3)
    assert grown_scale(15, 1.3819, 16) == pytest.approx(16 * 1.3819**15 - 1, rel=1e-5)
    plain = GridSpec(levels=2, features=2, log2_entries=10, base=4, finest=16)
    grown = GrownSpec(levels=2, features=2, log2_entries=10, base=4, growth=4.0)
    assert grown != plain
    assert grown.entries.tolist() == plain.entries.tolist()
    table, points = torch.randn(plain.total_entries, 2), torch.rand(20, 3)
    assert torch.equal(encode(points, table, grown), encode(points, table, plain))
    with pytest.raises(ConfigError, match=r"`growth` must be at least 1 and finite, got 0\.5"):
        GrownSpec(growth=0.5)
    with pytest.raises(ConfigError, match=r"`finest`, which is at most 2\^20"):
        GrownSpec(growth=1e9)


def test_reference_passes_gradgradcheck() -> None:
    spec = GridSpec(levels=2, features=2, log2_entries=5, base=2, finest=5)
    points = torch.rand(3, 3, dtype=torch.float64, requires_grad=True)
    table = torch.randn(spec.total_entries, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda p, t: reference.encode(p, t, spec), (points, table))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(("backend", "n"), [("cpu", 0), ("cpu", 50), ("gpu", 0), ("gpu", 30)])
def test_gradients_have_gradients_on_every_backend(backend: str, n: int, precision: str) -> None:
    if backend == "gpu":
        pytest.importorskip("triton")
    device = TRITON_DEVICE if backend == "gpu" else "cpu"
    points = torch.rand(n, 3, device=device, requires_grad=True)
    table = torch.randn(TINY.total_entries, 2, device=device, requires_grad=True)
    grad = torch.randn(n, TINY.width, device=device, requires_grad=True)
    results = {}
    for name in (backend, "reference"):
        with dispatch.force(name):  # type: ignore[arg-type]
            out = encode(points, table, TINY, precision=precision)  # type: ignore[arg-type]
            (slope,) = torch.autograd.grad(out, points, grad.to(out.dtype), create_graph=True)
            # The eikonal loss of a signed distance field: the gradient should have length 1.
            loss = ((slope.norm(dim=-1) - 1) ** 2).sum() + out.float().square().sum()
            results[name] = (slope.detach(), *torch.autograd.grad(loss, (points, table, grad)))
    bound = 1e-4 if precision == "fp32" else 1e-2
    names = ("slope", "points", "table", "grad")
    for what, got, expected in zip(names, results[backend], results["reference"], strict=True):
        assert got.shape == expected.shape, what
        assert float((got - expected).norm()) <= bound * float(expected.norm().clamp_min(1e-6)), what


@pytest.mark.parametrize("wanted", ["points", "table"])
def test_double_backward_works_for_points_or_table_alone(wanted: str) -> None:
    # With scales of 3, 7 and 15, small integers and odd sixteenths nothing rounds, so the order of sums is irrelevant.
    spec = GrownSpec(levels=3, features=2, log2_entries=7, base=4, growth=2.0)
    points = ((torch.randint(8, (9, 3)) * 2 + 1) / 16).requires_grad_(wanted == "points")
    table = torch.randint(-3, 4, (spec.total_entries, 2)).float().requires_grad_(wanted == "table")
    grad = torch.randint(-3, 4, (9, spec.width)).float().requires_grad_()
    leaf = points if wanted == "points" else table
    out = encode(points, table, spec)
    (first,) = torch.autograd.grad(out, leaf, grad, create_graph=True)
    assert torch.equal(first, torch.autograd.grad(encode(points, table, spec), leaf, grad)[0])
    second = torch.autograd.grad(first.square().sum(), grad)[0]
    assert second.shape == grad.shape
    assert bool((second != 0).any())

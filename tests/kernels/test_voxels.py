"""Interpolation in a sparse grid: values by hand, gradcheck of the reference, and Numba and Triton against it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.voxels import reference
from raymine.kernels.voxels.op import interpolate
from support.device import TRITON_DEVICE

pytestmark = pytest.mark.usefixtures("poisoned")


def grid(device: str = "cpu", side: int = 4, share: float = 0.6) -> tuple[Tensor, Tensor, int]:
    """A grid of which about this share of vertices has rows, in a buffer with room for more; index, side, rows."""
    generator = torch.Generator().manual_seed(side)
    there = torch.rand(side**3, generator=generator) < share
    index = torch.full((side**3 + 10,), -1, dtype=torch.int32)
    index[: side**3][there] = torch.randperm(int(there.sum()), generator=generator).int()
    return index.to(device), torch.tensor([side], dtype=torch.int32, device=device), int(there.sum())


def device_of(backend: str) -> str:
    if backend != "gpu":
        return "cpu"
    pytest.importorskip("triton")
    return str(TRITON_DEVICE)


def test_values_match_hand_computed_point() -> None:
    """A single cell; the far corner is missing. Values are x + 2 y + 4 z at the vertices that are there."""
    places = torch.arange(8)
    value = (places >> 2) * 1.0 + (places >> 1 & 1) * 2.0 + (places & 1) * 4.0
    index = torch.tensor([0, 1, 2, 3, 4, 5, 6, -1], dtype=torch.int32)
    side = torch.tensor([2], dtype=torch.int32)
    got = interpolate(torch.tensor([[0.5, 0.25, 0.125]]), index, side, value[:7, None], -10.0)
    weight = 0.5 * 0.25 * 0.125
    assert got.item() == pytest.approx(0.5 + 0.5 + 0.5 - weight * (7.0 + 10.0))


def test_reference_passes_gradcheck() -> None:
    index, side, rows = grid()
    points = torch.rand(5, 3, dtype=torch.float64, requires_grad=True)
    table = torch.randn(rows, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, t: reference.interpolate(x, index, side, t, -3.0), (points, table))


@pytest.mark.parametrize("columns", [1, 5, 27])
@pytest.mark.parametrize(("backend", "n"), [("cpu", 0), ("cpu", 1), ("cpu", 1000), ("gpu", 0), ("gpu", 70)])
def test_kernels_match_reference_output_and_gradients(columns: int, backend: str, n: int) -> None:
    device = device_of(backend)
    index, side, rows = grid(device)
    points = torch.rand(n, 6, device=device)[:, ::2].requires_grad_()  # non-contiguous
    table = torch.randn(rows, columns, device=device, requires_grad=True)
    grad = torch.randn(n, columns, device=device)
    results = {}
    for name in (backend, "reference"):
        with dispatch.force(name):  # type: ignore[arg-type]
            out = interpolate(points, index, side, table, -2.0)
            to_points, to_table = torch.autograd.grad(out, (points, table), grad)
            results[name] = out.detach(), to_points, to_table.to_dense() if to_table.is_sparse else to_table
    for got, expected in zip(results[backend], results["reference"], strict=True):
        assert got.shape == expected.shape
        assert float((got - expected).norm() / expected.norm().clamp_min(1e-6)) < 1e-5


@pytest.mark.parametrize("backend", ["reference", "cpu", "gpu"])
def test_outside_points_are_clamped_and_nan_stays_in_its_row(backend: str) -> None:
    device = device_of(backend)
    index, side, rows = grid(device)
    points = torch.rand(4, 3, device=device)
    points[1], points[2, 1] = torch.tensor([1.5, -0.25, 0.5]), torch.nan
    points.requires_grad_()
    table = torch.randn(rows, 3, device=device, requires_grad=True)
    with dispatch.force(backend):  # type: ignore[arg-type]
        out = interpolate(points, index, side, table)
        inside = interpolate(points.detach()[1:2].clamp(0, 1), index, side, table)
        to_points, to_table = torch.autograd.grad(out[[0, 1, 3]].sum(), (points, table))
    assert out[2].isnan().all()
    assert torch.allclose(out[1:2], inside)
    assert to_points[1, :2].tolist() == [0.0, 0.0]
    assert (to_table.to_dense() if to_table.is_sparse else to_table).isfinite().all()


@pytest.mark.parametrize("backend", ["reference", "cpu", "gpu"])
def test_rows_that_the_table_does_not_have_count_as_missing(backend: str) -> None:
    device = device_of(backend)
    index, side, rows = grid(device)
    points, table = torch.rand(20, 3, device=device), torch.randn(rows // 2, 3, device=device, requires_grad=True)
    with dispatch.force(backend):  # type: ignore[arg-type]
        got = interpolate(points, index, side, table, -2.0)
        expected = interpolate(points, torch.where(index < rows // 2, index, -1), side, table, -2.0)
        found = torch.autograd.grad(got.sum(), table)[0]
    assert torch.equal(got, expected)
    assert found.isfinite().all() if not found.is_sparse else found._values().isfinite().all()


def test_sparse_gradient_lists_each_touched_row_once_in_order() -> None:
    index, side, rows = grid(side=8)
    table = torch.randn(rows, 2, requires_grad=True)
    (found,) = torch.autograd.grad(interpolate(torch.rand(3, 3), index, side, table).sum(), table)
    listed = found._indices()[0]
    assert 0 < len(listed) <= 24
    assert (listed.diff() > 0).all()


def test_empty_sparse_gradient_can_be_added_to() -> None:
    index, side = torch.arange(8, dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    table = torch.ones(8, 1, requires_grad=True)
    interpolate(torch.empty(0, 3), index, side, table).sum().backward()
    interpolate(torch.zeros(1, 3), index, side, table).sum().backward()
    assert table.grad is not None
    assert table.grad.to_dense()[:, 0].tolist() == [1.0] + [0.0] * 7


def test_gradients_can_be_differentiated_again() -> None:
    index, side, rows = grid()
    points, table = torch.rand(3, 3, requires_grad=True), torch.randn(rows, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(interpolate(points, index, side, table).sum(), points, create_graph=True)
    (again,) = torch.autograd.grad(slope.square().sum(), table)
    assert float(again.abs().max()) > 0


def test_result_does_not_depend_on_the_number_of_threads() -> None:
    import numba

    index, side, rows = grid(side=8)
    points, grad = torch.rand(4000, 3), torch.randn(4000, 3)
    table, results, threads = torch.randn(rows, 3, requires_grad=True), [], numba.get_num_threads()
    try:
        for n in {1, numba.config.NUMBA_NUM_THREADS}:
            numba.set_num_threads(n)
            out = interpolate(points, index, side, table)
            results.append((out, torch.autograd.grad(out, table, grad)[0].to_dense()))
    finally:
        numba.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_wrong_arguments_are_refused_by_name() -> None:
    index, side, rows = grid()
    table = torch.randn(rows, 2)
    with pytest.raises(ConfigError, match="index"):
        interpolate(torch.rand(3, 3), index.long(), side, table)
    with pytest.raises(ConfigError, match="side"):
        interpolate(torch.rand(3, 3), index, side + 4, table)
    with pytest.raises(ConfigError, match="table"):
        interpolate(torch.rand(3, 3), index, side, table[0])

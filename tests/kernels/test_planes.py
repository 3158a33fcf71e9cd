"""Features from planes: values by hand, gradcheck of the reference, and Numba and Triton against it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.planes import reference
from raymine.kernels.planes.op import plane_product, vector_matrix
from support.device import TRITON_DEVICE

pytestmark = pytest.mark.usefixtures("poisoned")

KINDS = ("planes", "times", "vm")


def inputs(kind: str, n: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Points, planes and second factors; 5 vertices a side, 3 along time, 4 features."""
    points = torch.rand(n, 8 if kind == "times" else 6, device=device, dtype=dtype)[:, ::2]  # non-contiguous
    planes = torch.randn(3, 5, 5, 4, device=device, dtype=dtype)
    second = torch.randn(3, 5, 1 if kind == "vm" else 3, 4, device=device, dtype=dtype)
    return [points, planes, second][: 2 if kind == "planes" else 3]


def op_of(kind: str) -> Callable[..., Tensor]:
    return vector_matrix if kind == "vm" else plane_product


def device_of(backend: str) -> str:
    if backend != "gpu":
        return "cpu"
    pytest.importorskip("triton")
    return str(TRITON_DEVICE)


def test_product_of_planes_matches_hand_computed_point() -> None:
    """Planes of 2 x 2 vertices with one feature, linear in both axes: values can be read off."""
    planes = torch.zeros(3, 2, 2, 1)
    planes[0] = torch.tensor([[0.0, 1.0], [2.0, 3.0]])[..., None]  # 2 y + z
    planes[1] = torch.tensor([[1.0, 2.0], [1.0, 2.0]])[..., None]  # 1 + z
    planes[2] = torch.tensor([[1.0, 1.0], [5.0, 5.0]])[..., None]  # 1 + 4 x
    point = torch.tensor([[0.25, 0.5, 0.75]])
    assert plane_product(point, planes).item() == pytest.approx((1.0 + 0.75) * 1.75 * 2.0)
    lines = torch.tensor([[0.0, 4.0], [1.0, 3.0], [2.0, 2.0]])[:, :, None, None]  # 4 x, 1 + 2 y, 2
    assert vector_matrix(point, planes, lines)[0].tolist() == pytest.approx([1.75 * 1.0, 1.75 * 2.0, 2.0 * 2.0])
    times = torch.ones(3, 2, 3, 1)
    times[1, :, 1] = 7.0  # half-way through time, wherever y is
    moment = torch.tensor([[0.25, 0.5, 0.75, 0.5]])
    assert plane_product(moment, planes, times).item() == pytest.approx(7 * 1.75 * 1.75 * 2.0)


@pytest.mark.parametrize("kind", KINDS)
def test_reference_passes_gradcheck(kind: str) -> None:
    leaves = [part.clone().requires_grad_() for part in inputs(kind, 5, dtype=torch.float64)]
    second = leaves[2] if kind != "planes" else None
    assert torch.autograd.gradcheck(lambda x, p, *_: reference.features(x, p, second, kind == "vm"), leaves)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("backend", "n"), [("cpu", 0), ("cpu", 1), ("cpu", 1000), ("gpu", 0), ("gpu", 70)])
def test_kernels_match_reference_output_and_gradients(kind: str, backend: str, n: int) -> None:
    leaves = [part.requires_grad_() for part in inputs(kind, n, device_of(backend))]
    grad = torch.randn(n, 12 if kind == "vm" else 4, device=leaves[0].device)
    results = {}
    for name in (backend, "reference"):
        with dispatch.force(name):  # type: ignore[arg-type]
            out = op_of(kind)(*leaves)
            results[name] = (out.detach(), *torch.autograd.grad(out, leaves, grad))
    for got, expected in zip(results[backend], results["reference"], strict=True):
        assert got.shape == expected.shape
        assert float((got - expected).norm() / expected.norm().clamp_min(1e-6)) < 1e-5


@pytest.mark.parametrize("backend", ["reference", "cpu", "gpu"])
def test_outside_points_are_clamped_and_nan_stays_in_its_row(backend: str) -> None:
    points, planes = inputs("planes", 4, device_of(backend))
    points = points.contiguous()
    points[1], points[2, 1] = torch.tensor([1.5, -0.25, 0.5]), torch.nan
    points.requires_grad_()
    planes.requires_grad_()
    with dispatch.force(backend):  # type: ignore[arg-type]
        out = plane_product(points, planes)
        inside = plane_product(points.detach()[1:2].clamp(0, 1), planes)
        to_points, to_planes = torch.autograd.grad(out[[0, 1, 3]].sum(), (points, planes))
    assert out[2].isnan().all()
    assert torch.allclose(out[1:2], inside)
    assert to_points[1, :2].tolist() == [0.0, 0.0]
    assert to_planes.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_can_be_differentiated_again(kind: str) -> None:
    leaves = [part.requires_grad_() for part in inputs(kind, 3)]
    (slope,) = torch.autograd.grad(op_of(kind)(*leaves).sum(), leaves[:1], create_graph=True)
    (again,) = torch.autograd.grad(slope.square().sum(), leaves[1:2])
    assert float(again.abs().max()) > 0


def test_result_does_not_depend_on_the_number_of_threads() -> None:
    import numba

    leaves = [part.requires_grad_() for part in inputs("times", 4000)]
    grad, results, threads = torch.randn(4000, 4), [], numba.get_num_threads()
    try:
        for n in {1, numba.config.NUMBA_NUM_THREADS}:
            numba.set_num_threads(n)
            out = plane_product(*leaves)
            results.append((out, *torch.autograd.grad(out, leaves, grad)))
    finally:
        numba.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_wrong_shapes_are_refused_by_name() -> None:
    points, planes, lines = inputs("vm", 3)
    with pytest.raises(ConfigError, match="planes"):
        plane_product(points, planes[:2])
    with pytest.raises(ConfigError, match="positions"):
        plane_product(points[:, :2], planes)
    with pytest.raises(ConfigError, match="lines"):
        vector_matrix(points, planes, lines.expand(3, 5, 2, 4))
    with pytest.raises(ConfigError, match="times"):
        plane_product(torch.rand(3, 4), planes, torch.ones(3, 4, 2, 4))

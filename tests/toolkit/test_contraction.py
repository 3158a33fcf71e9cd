"""Contraction: points by hand, round trips, gradients, infinite and NaN points, and errors."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels.ngp_step.op import Box
from raymine.kernels.ngp_step.op import to_unit_cube as fused_to_unit_cube
from raymine.toolkit.contraction import Norm, contract, from_unit_cube, to_unit_cube, uncontract
from support.pages import run_page

NORMS: list[Norm] = ["l2", "inf"]
coordinate = st.floats(-1e6, 1e6) | st.floats(-1.5, 1.5) | st.sampled_from([0.0, 1.0, -1.0, 1e-30])


def test_documentation_examples_run() -> None:
    run_page("contraction.md")


def by_definition(point: list[float], norm: Norm) -> list[float]:
    size = math.sqrt(sum(x * x for x in point)) if norm == "l2" else max(abs(x) for x in point)
    return point if size <= 1 else [(2 - 1 / size) * x / size for x in point]


def test_contract_and_to_unit_cube_match_hand_computed_points() -> None:
    """3-4-5: the ball takes (3, 4, 0) to (2 - 1/5) (0.6, 0.8, 0), the cube to (2 - 1/4) (0.75, 1, 0)."""
    points = torch.tensor([[3.0, 4.0, 0.0], [0.5, -0.5, 0.5], [0.0, 0.0, -2.0]])
    ball = contract(points, "l2")
    assert ball.flatten().tolist() == pytest.approx([1.08, 1.44, 0.0, 0.5, -0.5, 0.5, 0.0, 0.0, -1.5])
    cube = contract(points, "inf")
    assert cube.flatten().tolist() == pytest.approx([1.3125, 1.75, 0.0, 0.5, -0.5, 0.5, 0.0, 0.0, -1.5])
    low, high = torch.full((3,), -2.0), torch.full((3,), 2.0)
    unit = to_unit_cube(torch.tensor([[0.0, 2.0, -2.0], [0.0, 0.0, 4.0]]), low, high)
    assert unit.flatten().tolist() == pytest.approx([0.5, 0.75, 0.25, 0.5, 0.5, 0.875])


@settings(deadline=None, max_examples=150)
@given(st.lists(coordinate, min_size=1, max_size=4), st.sampled_from(NORMS))
def test_contract_matches_its_definition_and_uncontract_inverts_it(point: list[float], norm: Norm) -> None:
    x = torch.tensor(point, dtype=torch.float64)
    y = contract(x, norm)
    assert y.tolist() == pytest.approx(by_definition(point, norm), rel=1e-12, abs=1e-300)
    size = float(torch.linalg.vector_norm(y, 2 if norm == "l2" else torch.inf))
    assert size <= 2 * (1 + 1e-15)
    # The distance to the boundary is 1/|x|, so relative precision is lost in proportion to |x|.
    furthest = max(1.0, float(x.abs().max()))
    assert torch.allclose(uncontract(y, norm), x, rtol=1e-14 * furthest, atol=1e-14 * furthest)


@settings(deadline=None, max_examples=80)
@given(st.lists(st.floats(0.01, 0.99), min_size=3, max_size=3), st.sampled_from(NORMS))
def test_to_unit_cube_inverts_from_unit_cube(point: list[float], norm: Norm) -> None:
    low, high = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64), torch.tensor([3.0, 0.5, 9.0], dtype=torch.float64)
    cube = torch.tensor([point], dtype=torch.float64)
    assume(norm == "inf" or float((cube * 4 - 2).norm()) <= 1.95)  # not a corner of the cube, outside the ball
    assert torch.allclose(to_unit_cube(from_unit_cube(cube, low, high, norm), low, high, norm), cube, atol=1e-10)


def test_to_unit_cube_is_bit_identical_to_that_of_the_hash_grid_field() -> None:
    rng = torch.Generator().manual_seed(0)
    points = torch.randn(500, 3, generator=rng) * torch.rand(500, 1, generator=rng).mul(12).exp()
    low, high = torch.tensor([-1.0, -2.0, 0.0]), torch.tensor([1.0, 2.0, 3.0])
    box = Box(low, high, True)
    ours = to_unit_cube(points, low, high)
    assert torch.equal(ours, fused_to_unit_cube(points, box))


def safe_points() -> Tensor:
    """Points away from the kinks of the norms: |x| = 1, and for `inf` two largest coordinates of the same size."""
    return torch.tensor(
        [[0.0, 0.0, 0.0], [0.3, -0.2, 0.1], [0.9, 0.3, 0.2], [1.2, 0.3, -0.4], [-30.0, 4.0, 5.0]], dtype=torch.float64
    )


@pytest.mark.parametrize("norm", NORMS)
def test_contraction_passes_gradcheck(norm: Norm) -> None:
    assert torch.autograd.gradcheck(lambda x: contract(x, norm), safe_points().requires_grad_())
    squashed = contract(safe_points(), norm).requires_grad_()
    assert torch.autograd.gradcheck(lambda y: uncontract(y, norm), squashed, atol=1e-4)
    low, high = torch.tensor([-1.0, 0.0, 2.0]).double(), torch.tensor([3.0, 0.5, 9.0]).double()
    box = [safe_points().requires_grad_(), low.requires_grad_(), high.requires_grad_()]
    assert torch.autograd.gradcheck(lambda x, a, b: to_unit_cube(x, a, b, norm), box)


@pytest.mark.parametrize("norm", NORMS)
def test_value_and_slope_are_continuous_at_one_and_slope_is_one_at_zero(norm: Norm) -> None:
    for direction in (torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.6, -0.8, 0.0])):
        unit = (direction / torch.linalg.vector_norm(direction, 2 if norm == "l2" else torch.inf)).double()
        radius = torch.tensor([1 - 1e-7, 1.0, 1 + 1e-7], dtype=torch.float64).requires_grad_()
        y = contract(radius[:, None] * unit, norm)
        (slope,) = torch.autograd.grad((y * unit).sum(), radius)
        assert torch.allclose(y, radius.detach()[:, None] * unit, atol=1e-12)
        assert torch.allclose(slope, (unit @ unit).expand(3), atol=1e-6)
    zero = torch.zeros(1, 3, requires_grad=True)
    for function in (contract, uncontract):
        (grad,) = torch.autograd.grad(function(zero, norm).sum(), zero)
        assert grad.tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize("norm", NORMS)
def test_infinite_and_huge_points_contract_to_the_boundary(norm: Norm) -> None:
    inf = math.inf
    points = torch.tensor([[inf, 0.0, 5.0], [inf, -inf, 3.0], [0.0, 0.0, -inf], [3e38, 3e38, 3e38], [0.0, 1e30, 0.0]])
    points.requires_grad_()
    y = contract(points, norm)
    corner = 2 / math.sqrt(2) if norm == "l2" else 2.0
    all_three = 2 / math.sqrt(3) if norm == "l2" else 2.0
    wanted = [[2.0, 0.0, 0.0], [corner, -corner, 0.0], [0.0, 0.0, -2.0], [all_three] * 3, [0.0, 2.0, 0.0]]
    assert y.tolist() == [pytest.approx(row) for row in wanted]
    (grad,) = torch.autograd.grad(y.sum(), points)
    assert bool(torch.isfinite(grad).all())
    assert grad[:3].abs().max() == 0
    rim = torch.tensor([[2.0, 0.0, 0.0], [0.0, -3.0, 1.0], [0.0, inf, 0.0], [0.5, 0.0, 0.0]], requires_grad=True)
    back = uncontract(rim, norm)
    assert back.tolist() == [[inf, 0.0, 0.0], [0.0, -inf, inf], [0.0, inf, 0.0], [0.5, 0.0, 0.0]]
    (grad,) = torch.autograd.grad(back[3].sum() + 0 * back[:3].sum().nan_to_num(), rim)
    assert not bool(torch.isnan(grad[3]).any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_largest_floats_contract_to_at_most_two(dtype: torch.dtype) -> None:
    """For these points 2/|x| is subnormal and has few digits."""
    largest = torch.finfo(dtype).max
    points = (torch.linspace(0.3, 1.0, 2000, dtype=torch.float64) * largest).to(dtype)[:, None]
    y = contract(points)
    assert float(y.max()) <= 2
    assert torch.allclose(y.double(), torch.tensor(2.0).double(), rtol=4 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("norm", NORMS)
def test_nan_coordinate_makes_only_its_point_nan(norm: Norm) -> None:
    points = torch.tensor([[math.nan, 0.0, 0.0], [math.nan, math.inf, 9.0], [0.1, 0.2, 0.3]])
    for function in (contract, uncontract):
        got = function(points, norm)
        assert bool(torch.isnan(got[:2]).all())
        assert got[2].tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_empty_float16_and_flat_box_inputs_are_handled() -> None:
    assert contract(torch.zeros(0, 3), "l2").shape == uncontract(torch.zeros(0, 3)).shape == (0, 3)
    half = contract(torch.tensor([[60000.0, 60000.0, 0.0]], dtype=torch.float16), "l2")
    assert half.dtype == torch.float16
    assert half.flatten().tolist() == pytest.approx([math.sqrt(2), math.sqrt(2), 0.0], abs=2e-3)
    low, high = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([1.0, 1.0, 1.0])
    flat = to_unit_cube(torch.tensor([[0.5, 0.5, 1.0], [0.5, 0.5, 2.0]]), low, high)
    assert bool(torch.isnan(flat[0]).all())
    assert flat[1].tolist() == [0.5, 0.5, 1.0]


def test_invalid_arguments_raise_config_error() -> None:
    with pytest.raises(ConfigError, match="`norm` must be 'l2' or 'inf', got 'l1'"):
        contract(torch.zeros(1, 3), "l1")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"points must be floats of shape \[..., D\], got torch.int64"):
        uncontract(torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(ConfigError, match=r"`high` must have shape \[3\], one number per coordinate, got \[2\]"):
        to_unit_cube(torch.zeros(1, 3), torch.zeros(3), torch.ones(2))

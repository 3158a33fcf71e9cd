"""The contraction: hand-computed points, gradients, and its copy in the Numba kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raymine.kernels._numba import array
from raymine.kernels.contraction import box_units, contract
from raymine.kernels.ngp_step.inputs import Box, to_unit_cube
from raymine.kernels.ngp_step.layers import network_inputs


def test_contract_matches_hand_computed_points() -> None:
    x = torch.tensor([[0.5, -0.25, 0.0], [2.0, 1.0, -4.0], [1e9, 0.0, 0.0]])
    assert contract(x)[0].tolist() == [0.5, -0.25, 0.0]
    # |x| = 4: scaled by (2 - 1/4) / 4 = 0.4375.
    assert contract(x)[1].tolist() == pytest.approx([0.875, 0.4375, -1.75])
    assert contract(x)[2].tolist() == pytest.approx([2.0, 0.0, 0.0])


def test_contract_leaves_the_inner_cube_unchanged_bit_for_bit() -> None:
    x = torch.rand(1000, 3) * 2 - 1
    assert torch.equal(contract(x), x)


def test_box_units_match_hand_computed_points() -> None:
    low, high = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([3.0, 1.0, 4.0])
    points = torch.stack((low, high, (low + high) / 2, high + (high - low)))
    assert box_units(points, low, high).tolist() == [[-1.0] * 3, [1.0] * 3, [0.0] * 3, [3.0] * 3]


def test_contract_and_box_units_pass_gradcheck() -> None:
    """At points away from where another coordinate becomes the largest."""
    points = torch.tensor([[0.0, 0.0, 0.0], [0.3, -0.2, 0.1], [1.2, 0.3, -0.4], [-30.0, 4.0, 5.0]]).double()
    low, high = torch.tensor([-1.0, 0.0, 2.0]).double(), torch.tensor([3.0, 0.5, 9.0]).double()
    assert torch.autograd.gradcheck(contract, points.requires_grad_())
    assert torch.autograd.gradcheck(box_units, [x.requires_grad_() for x in (points.detach(), low, high)])


def test_nan_coordinate_makes_only_its_point_nan() -> None:
    y = contract(torch.tensor([[float("nan"), 0.0, 9.0], [0.1, 0.2, 0.3]]))
    assert y[0].isnan().all()
    assert y[1].tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_numba_copy_of_the_contraction_matches_it() -> None:
    rng = torch.Generator().manual_seed(0)
    points = torch.randn(500, 3, generator=rng) * torch.rand(500, 1, generator=rng).mul(12).exp()
    low, high = torch.tensor([-1.0, -2.0, 0.0]), torch.tensor([1.0, 2.0, 3.0])
    cube, encoded = np.empty((500, 3), np.float32), np.empty((500, 16), np.float32)
    network_inputs(array(points), array(points), array(low), array(high), True, cube, encoded)
    assert np.allclose(cube, to_unit_cube(points, Box(low, high, True)).numpy(), rtol=0, atol=2e-7)

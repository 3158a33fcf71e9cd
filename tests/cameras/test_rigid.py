"""The exponential map of SE(3) against torch's matrix exponential, and its gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from raymine.cameras import exp_se3
from raymine.cameras.rigid import cross_matrix
from raymine.errors import ConfigError

ANGLES = (0.0, 1e-9, 1e-4, 0.1, 0.999, 1.0, 1.001, 2.0, 3.0, 6.0)


def twists(dtype: torch.dtype = torch.float64) -> Tensor:
    """Random axes and translations with all kinds of angles."""
    random = torch.Generator().manual_seed(1)
    axes = torch.nn.functional.normalize(torch.randn(len(ANGLES), 3, generator=random, dtype=torch.float64), dim=1)
    shifts = torch.randn(len(ANGLES), 3, generator=random, dtype=torch.float64)
    return torch.cat((axes * torch.tensor(ANGLES, dtype=torch.float64)[:, None], shifts), 1).to(dtype)


def by_matrix_exponential(twist: Tensor) -> Tensor:
    generator = twist.new_zeros(len(twist), 4, 4)
    generator[:, :3, :3], generator[:, :3, 3] = cross_matrix(twist[:, :3]), twist[:, 3:]
    return torch.linalg.matrix_exp(generator)[:, :3]


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_exp_equals_the_matrix_exponential(dtype: torch.dtype, limit: float) -> None:
    expected = by_matrix_exponential(twists())
    assert (exp_se3(twists(dtype)).double() - expected).abs().max() < limit


def test_rotations_are_orthonormal() -> None:
    turn = exp_se3(twists())[:, :, :3]
    assert torch.allclose(turn @ turn.mT, torch.eye(3, dtype=turn.dtype).expand_as(turn), atol=1e-12)
    assert torch.allclose(torch.linalg.det(turn), torch.ones(len(turn), dtype=turn.dtype))


def test_zero_is_the_identity_exactly() -> None:
    assert torch.equal(exp_se3(torch.zeros(2, 6)), torch.eye(3, 4).expand(2, 3, 4))


def test_quarter_turn_by_hand() -> None:
    """A quarter turn about z along a translation of 2 in x: the camera follows an arc of length 2, radius 4 / pi."""
    found = exp_se3(torch.tensor([[0.0, 0.0, math.pi / 2, 2.0, 0.0, 0.0]], dtype=torch.float64))[0]
    radius = 4 / math.pi
    expected = torch.tensor([[0.0, -1.0, 0.0, radius], [1.0, 0.0, 0.0, radius], [0.0, 0.0, 1.0, 0.0]])
    assert torch.allclose(found, expected.double(), atol=1e-12)


def test_gradients_equal_finite_differences_at_every_angle() -> None:
    # At an angle of exactly 1 the two formulas meet, and a difference would take one value from each.
    assert torch.autograd.gradcheck(exp_se3, (twists().requires_grad_(),))
    assert torch.autograd.gradgradcheck(exp_se3, (twists()[:6].requires_grad_(),))


def test_gradient_at_zero_is_that_of_the_generators() -> None:
    jacobian = torch.autograd.functional.jacobian(exp_se3, torch.zeros(1, 6, dtype=torch.float64))[0, :, :, 0]
    assert torch.allclose(jacobian[:, :3, :3].permute(2, 0, 1), cross_matrix(torch.eye(3, dtype=torch.float64)))
    assert torch.equal(jacobian[:, 3, 3:], torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize("twist", [torch.zeros(6), torch.zeros(2, 5), torch.zeros(2, 6, dtype=torch.int64)])
def test_wrong_shapes_and_types_are_refused(twist: Tensor) -> None:
    with pytest.raises(ConfigError, match="`twist` must be floating-point of shape"):
        exp_se3(twist)

"""`contract` and `contract_inv` of nerfacc 0.2 and 0.3: points by hand, the inverse, the ends of space."""

from __future__ import annotations

import math

import pytest
import torch

from raymine.compat.nerfacc_v03 import ContractionType, contract, contract_inv, cuda
from raymine.errors import ConfigError

ROI = torch.tensor([-1.0, 0.0, 2.0, 1.0, 4.0, 3.0], dtype=torch.float64)
CENTRE = torch.tensor([0.0, 2.0, 2.5], dtype=torch.float64)
HALF = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)


def test_points_by_hand() -> None:
    corner = ROI[3:]
    assert contract(corner, ROI).tolist() == [1.0, 1.0, 1.0]
    tanh = contract(corner, ROI, ContractionType.UN_BOUNDED_TANH)
    torch.testing.assert_close(tanh, torch.full((3,), (math.tanh(0.5) + 1) / 2, dtype=torch.float64))
    # On the x axis, at 4 half sides from the centre: (2 - 1/4) / 4 + 1/2.
    far = CENTRE + HALF * torch.tensor([4.0, 0.0, 0.0])
    sphere = contract(far, ROI, ContractionType.UN_BOUNDED_SPHERE)
    torch.testing.assert_close(sphere, torch.tensor([0.9375, 0.5, 0.5], dtype=torch.float64))


@pytest.mark.parametrize("kind", list(ContractionType))
def test_the_inverse_returns_every_point(kind: ContractionType) -> None:
    x = CENTRE + HALF * torch.randn(10, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2
    torch.testing.assert_close(contract_inv(contract(x, ROI, kind), ROI, kind), x)
    assert not contract(x.requires_grad_(), ROI, kind).requires_grad


def test_the_end_of_space_becomes_far_but_finite() -> None:
    rim = torch.tensor([[1.0, 0.5, 0.5], [0.0, 0.5, 0.5], [1.0, 1.0, 1.0]], dtype=torch.float64)
    for kind in (ContractionType.UN_BOUNDED_TANH, ContractionType.UN_BOUNDED_SPHERE):
        found = contract_inv(rim, ROI, kind)
        assert bool(found.isfinite().all())
        assert bool((found[:2, 0].abs() > 1e9).all())
        torch.testing.assert_close(found[:2, 1:], CENTRE[1:].expand(2, 2))


def test_numbers_of_the_types() -> None:
    assert [kind.value for kind in ContractionType] == [0, 1, 2]
    for kind in ContractionType:
        assert kind.to_cpp_version() == cuda.ContractionTypeGetter(kind.value)
    with pytest.raises(ConfigError, match="`value` must be 0, 1 or 2, got 3"):
        cuda.ContractionTypeGetter(3)
    with pytest.raises(AttributeError, match=r"`nerfacc\.cuda\.grid_query` is a compiled function"):
        cuda.grid_query  # noqa: B018


def test_wrong_arguments_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"`x` must have shape \[2, 3\], got \[2, 2\]"):
        contract(torch.rand(2, 2), ROI.float())
    with pytest.raises(ConfigError, match=r"`roi` must have shape \[6\]"):
        contract(torch.rand(2, 3), ROI[:4].float())
    with pytest.raises(ConfigError, match=r"`type` must be a member of `ContractionType`, got 1"):
        contract_inv(torch.rand(2, 3), ROI.float(), 1)  # type: ignore[arg-type]

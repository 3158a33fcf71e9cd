"""Density in front of cameras is penalised, and training with the penalty clears it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from raymine.contracts import ParameterView
from raymine.errors import ConfigError
from raymine.losses import FreeSpaceLoss

AHEAD = torch.tensor([[[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 2]]])
"""A camera at (0, 0, 2) that looks at the origin."""
BESIDE = torch.tensor([[[0.0, 0, 1, 4], [1, 0, 0, 0], [0, 1, 0, 0]]])
"""A camera at (4, 0, 0) that looks at the origin."""


class _Fog(nn.Module):
    """The same density everywhere: exp(value - 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(1.0))

    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        return self.value.expand(len(positions))


def test_value_is_the_opacity_of_fog_and_pushes_it_down() -> None:
    fog, term = _Fog(), FreeSpaceLoss(weight=2.0, length=0.5)
    found = term(ParameterView({}, 3, field=fog, cameras=AHEAD))  # type: ignore[arg-type]
    assert float(found.detach()) == pytest.approx(2 * (1 - math.exp(-0.5)), rel=1e-5)
    found.backward()
    assert fog.value.grad is not None
    assert float(fog.value.grad) == pytest.approx(math.exp(-0.5), rel=1e-5)


@pytest.mark.parametrize("step", [0, 7, 20_000, torch.tensor(7)])
def test_points_lie_in_front_of_every_camera_within_its_reach(step: int | Tensor) -> None:
    term = FreeSpaceLoss(share=0.25, wide=0.5, count=512)
    points = term.points(torch.cat((AHEAD, BESIDE)), step)
    first, second = points[0::2], points[1::2]
    for away, across, reach in ((2 - first[:, 2], first[:, :2], 0.5), (4 - second[:, 0], second[:, 1:], 1.0)):
        assert (away >= 0).all()
        assert (across.abs() <= 0.5 * away[:, None] + 1e-5).all()
        assert 0.97 * reach < float(away.max()) <= reach
        assert float(away.mean()) == pytest.approx(0.5 * reach, rel=0.05)


def test_steps_differ_and_repeat() -> None:
    term = FreeSpaceLoss(count=64)
    assert torch.equal(term.points(AHEAD, 1_234_567), term.points(AHEAD, torch.tensor(1_234_567)))
    assert not torch.equal(term.points(AHEAD, 5), term.points(AHEAD, 6))


def test_wrong_settings_and_missing_cameras_are_errors() -> None:
    with pytest.raises(ConfigError, match="share"):
        FreeSpaceLoss(share=1.0)
    with pytest.raises(ConfigError, match="cameras"):
        FreeSpaceLoss()(ParameterView({}, 0, field=_Fog()))  # type: ignore[arg-type]

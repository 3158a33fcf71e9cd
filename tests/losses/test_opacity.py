"""Loss terms on opacity and depth, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from raymine.contracts import FieldOutput, LossView, Rays, Rendered, Targets
from raymine.errors import ConfigError
from raymine.kernels.judge.op import Wanted
from raymine.kernels.packed import Samples
from raymine.losses import DepthLoss, MaskLoss, OpacityLoss


def view(opacity: Tensor, weights: Tensor, weight: Tensor, targets: Targets) -> LossView:
    """Two rays with two samples each, whose midpoints are at 1 and 3."""
    samples = Samples(
        torch.tensor([0.5, 2.5] * 2), torch.tensor([1.5, 3.5] * 2), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 2]),
        torch.tensor([2, 2]),
    )  # fmt: skip
    colour = torch.zeros(2, 3)
    rays = Rays(colour, colour, torch.zeros(2), torch.ones(2))
    rendered = Rendered(colour, opacity, torch.zeros(2), weights)
    return LossView(
        {}, 0, rays, Wanted(colour, colour, weight), samples, FieldOutput(torch.zeros(4, 3), torch.zeros(4)), rendered,
        (), targets,
    )  # fmt: skip


WEIGHTS = torch.tensor([0.2, 0.3, 0.4, 0.5])


def test_entropy_of_opacity_by_hand() -> None:
    seen = view(torch.tensor([0.5, 1.0]), WEIGHTS, torch.ones(2), Targets())
    assert float(OpacityLoss(2.0)(seen)) == pytest.approx(math.log(2), rel=2e-3)
    masked = replace(seen, wanted=seen.wanted._replace(weight=torch.tensor([0.0, 1.0])))
    assert float(OpacityLoss(2.0)(masked)) == pytest.approx(0.0, abs=3e-3)


def test_opacity_is_pushed_to_the_nearer_end() -> None:
    opacity = torch.tensor([0.3, 0.7], requires_grad=True)
    OpacityLoss(1.0)(view(opacity, WEIGHTS, torch.ones(2), Targets())).backward()
    assert opacity.grad is not None
    assert opacity.grad[0] > 0 > opacity.grad[1]


def test_mask_loss_compares_opacity_with_alpha() -> None:
    seen = view(torch.tensor([0.5, 1.0]), WEIGHTS, torch.ones(2), Targets(alpha=torch.tensor([1.0, 1.0])))
    assert float(MaskLoss(4.0)(seen)) == pytest.approx(4 * 0.25 / 2)
    with pytest.raises(ConfigError, match="needs the alpha"):
        MaskLoss()(replace(seen, targets=Targets()))


def test_depth_loss_by_hand_counts_known_rays_only() -> None:
    seen = view(torch.tensor([0.5, 0.9]), WEIGHTS, torch.ones(2), Targets(depth=torch.tensor([0.0, 1.0])))
    # The second ray has a weight of 0.4 at the distance 1, which is right, and of 0.5 at 3, which is 2 off.
    expected = 0.5 * (1 - math.exp(-4)) + (1 - 0.9) ** 2
    assert float(DepthLoss(3.0, spread=1.0)(seen)) == pytest.approx(3 * expected, rel=1e-5)
    unknown = replace(seen, targets=Targets(depth=torch.zeros(2)))
    assert float(DepthLoss(3.0)(unknown)) == 0
    with pytest.raises(ConfigError, match="needs the depth"):
        DepthLoss()(replace(seen, targets=Targets()))


def test_depth_loss_moves_the_weight_to_the_measured_distance() -> None:
    weights = WEIGHTS.clone().requires_grad_()
    DepthLoss(1.0)(
        view(torch.tensor([0.5, 0.9]), weights, torch.ones(2), Targets(depth=torch.tensor([3.0, 1.0])))
    ).backward()
    assert weights.grad is not None
    assert weights.grad[0] > weights.grad[1] == 0
    assert weights.grad[3] > weights.grad[2] == 0
    with pytest.raises(ConfigError, match="positive `spread`, got 0"):
        DepthLoss(1.0, spread=0.0)


@pytest.mark.parametrize("term", [OpacityLoss, MaskLoss, DepthLoss])
def test_weights_are_positive(term: type) -> None:
    with pytest.raises(ConfigError, match="needs a positive `weight`, got 0"):
        term(0.0)

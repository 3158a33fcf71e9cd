"""The distortion loss: by hand, its share of masked rays, and refused weights."""

from __future__ import annotations

import pytest
import torch

from raymine.contracts import FieldOutput, LossView, Rays, Rendered
from raymine.errors import ConfigError
from raymine.kernels.judge.op import Wanted
from raymine.kernels.packed import Samples, pack_counts
from raymine.losses import ColourLoss, DistortionLoss, judged_loss
from raymine.losses.coarse import CoarseColourLoss


def view(weights: torch.Tensor, samples: Samples, mask: torch.Tensor) -> LossView:
    rays, n = len(mask), len(samples)
    nothing = torch.zeros(rays, 3)
    return LossView(
        {}, 0, Rays(nothing, nothing, mask, mask), Wanted(nothing, nothing, mask), samples,
        FieldOutput(torch.zeros(n, 3), torch.zeros(n)), Rendered(nothing, mask, mask, weights), (),
    )  # fmt: skip


def test_distortion_of_two_intervals_by_hand() -> None:
    """Midpoints 1/3 .. 1/2 on the curve t / (1 + t): intervals 0.5 .. 1 and 1 .. 3 are 1/3 .. 1/2 and 1/2 .. 3/4."""
    samples = Samples.from_pack(torch.tensor([0.5, 1.0]), torch.tensor([1.0, 3.0]), pack_counts(torch.tensor([2, 0])))
    weights = torch.tensor([0.4, 0.6])
    gap = (1 / 2 + 3 / 4) / 2 - (1 / 3 + 1 / 2) / 2
    spread = 2 * 0.4 * 0.6 * gap + (0.4**2 / 6 + 0.6**2 / 4) / 3
    # Two rays count, of which one has no samples and so no distortion.
    got = DistortionLoss(0.1)(view(weights, samples, torch.ones(2)))
    assert float(got) == pytest.approx(0.1 * spread / 2, rel=1e-6)
    masked = DistortionLoss(0.1)(view(weights, samples, torch.tensor([0.0, 1.0])))
    assert float(masked) == 0.0


def test_gradient_reaches_weights() -> None:
    samples = Samples.from_pack(torch.tensor([0.5, 1.0]), torch.tensor([1.0, 3.0]), pack_counts(torch.tensor([2])))
    weights = torch.tensor([0.4, 0.6], requires_grad=True)
    DistortionLoss()(view(weights, samples, torch.ones(1))).backward()
    assert weights.grad is not None
    assert (weights.grad > 0).all()


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weight_must_be_positive_and_finite(weight: float) -> None:
    with pytest.raises(ConfigError, match="weight"):
        DistortionLoss(weight)


def test_judge_takes_colour_with_or_without_distortion() -> None:
    colour = ColourLoss("l2")
    assert judged_loss((colour,)) == (colour, 0.0)
    assert judged_loss((DistortionLoss(0.5), colour)) == (colour, 0.5)
    assert judged_loss((DistortionLoss(0.5),)) is None
    assert judged_loss((colour, colour)) is None
    assert judged_loss((colour, CoarseColourLoss())) is None

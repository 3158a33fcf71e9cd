"""Diagnostics of mining, against numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch

from raymine.contracts import Selection
from raymine.errors import ConfigError
from raymine.kernels.composite.op import composite
from raymine.kernels.packed import Samples
from raymine.mining import Miner
from raymine.mining import diagnose as d

# Two rays of four samples. The first crosses empty space, meets a surface and goes on behind it; the second meets
# nothing.
RAY_ID = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
WEIGHTS = torch.tensor([0.0, 0.25, 0.7, 0.0005, 0.0, 0.0002, 0.0, 0.0])
THROUGH = torch.tensor([1.0, 1.0, 0.75, 0.05, 1.0, 1.0, 0.9998, 0.9998])
SIZE = torch.tensor([0.0, 4.0, 8.0, 1.0, 0.0, 2.0, 1.0, 0.0])


def selection(index: list[int], weight: list[float], tau: float = 1.0) -> Selection:
    return Selection(torch.tensor(index), torch.tensor(weight), torch.tensor(tau), torch.tensor(3.0))


def test_skewness_matches_hand_computed_values() -> None:
    # Mean 2, deviations -1 -1 -1 3: second moment 3, third 6.
    assert d.skewness(torch.tensor([1.0, 1.0, 1.0, 5.0])) == pytest.approx(6 / 3**1.5)
    assert d.skewness(torch.tensor([1.0, 2.0, 3.0])) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [0.1, 0.1, 0.1], [7.0]])
def test_skewness_of_constant_or_no_values_is_zero(values: list[float]) -> None:
    assert d.skewness(torch.tensor(values)) == 0


def test_effective_size_matches_hand_computation_and_tau() -> None:
    assert d.effective_size(torch.tensor([3.0, 1.0])) == pytest.approx(16 / 10)
    assert d.effective_size(torch.full((5,), 0.3)) == pytest.approx(5)
    assert d.effective_size(torch.zeros(4)) == 0
    tau = Miner(images=1).choose(SIZE[:, None], step=0).tau
    assert d.effective_size(SIZE) == pytest.approx(len(SIZE) / float(tau) ** 2)


def test_histogram_counts_logarithmic_bins_and_values_below_and_above() -> None:
    values = torch.tensor([0.0, 0.005, 0.02, 0.03, 0.5, 1.0, 7.0, math.inf, math.nan])
    found = d.histogram(values, 0.01, 1.0, 2)
    assert found.edges == pytest.approx((0.01, 0.1, 1.0))
    assert (found.below, found.counts, found.above) == (2, (2, 1), 4)
    assert d.histogram(torch.zeros(0), 0.01, 1.0, 2).counts == (0, 0)


@pytest.mark.parametrize(("low", "high", "bins"), [(0.0, 1.0, 3), (2.0, 1.0, 3), (0.1, 1.0, 0)])
def test_histogram_rejects_invalid_bins(low: float, high: float, bins: int) -> None:
    with pytest.raises(ConfigError, match="a histogram needs 0 < low < high"):
        d.histogram(torch.ones(2), low, high, bins)


def test_classify_labels_empty_surface_and_occluded_samples() -> None:
    empty, surface, occluded = d.SampleClass
    assert d.classify(WEIGHTS, THROUGH).tolist() == [empty, surface, surface, occluded, empty, empty, empty, empty]


def test_count_classes_counts_all_and_chosen_samples() -> None:
    chosen = d.chosen_mask(selection([1, 2, 5], [1.0, 2.0, 1.0]), 8)
    counts = d.count_classes(d.classify(WEIGHTS, THROUGH), chosen)
    assert [(p.all, p.chosen) for p in counts.values()] == [(5, 1), (2, 2), (1, 0)]


def test_chosen_mask_ignores_entries_of_weight_zero() -> None:
    assert d.chosen_mask(selection([1, 3, 1, 0], [1.0, 2.0, 0.0, 0.0]), 4).tolist() == [False, True, False, True]


def test_share_kept_is_the_chosen_part_of_the_gradient() -> None:
    chosen = torch.tensor([False, True, True, False, False, False, False, False])
    assert d.share_kept(SIZE, chosen) == pytest.approx(12 / 16)
    assert d.share_kept(torch.zeros(8), chosen) == 0


def test_ray_importance_sums_along_each_ray() -> None:
    assert d.ray_importance(SIZE, RAY_ID, 3).tolist() == [13.0, 3.0, 0.0]


def test_top_share_matches_hand_computed_values() -> None:
    importance = torch.tensor([9.0] + [1.0] * 9)
    assert d.top_share(importance, 0.1) == pytest.approx(0.5)
    assert d.top_share(torch.ones(20), 0.1) == pytest.approx(0.1)
    assert d.top_share(torch.zeros(20), 0.1) == 0


def test_transmittance_before_matches_hand_computed_values() -> None:
    found = d.transmittance_before(WEIGHTS, RAY_ID, 2)
    assert found.tolist() == pytest.approx([1.0, 1.0, 0.75, 0.05, 1.0, 1.0, 0.9998, 0.9998])


def test_transmittance_before_matches_composite() -> None:
    count = torch.tensor([5, 0, 7])
    ray_id = torch.repeat_interleave(torch.arange(3), count)
    start = torch.arange(12).float()
    density = torch.linspace(0.05, 0.3, 12)
    samples = Samples(start, start + 1, ray_id, torch.tensor([0, 5, 5]), count)
    weights = composite(density, torch.zeros(12, 3), samples, torch.zeros(3, 3), 0.0).weights
    expected = torch.cat([torch.exp(-(part.cumsum(0) - part)) for part in density.split([5, 7])])
    assert torch.allclose(d.transmittance_before(weights, ray_id, 3), expected, atol=1e-6)


def test_diagnosis_matches_hand_computed_values() -> None:
    chosen = selection([1, 2, 5, 1], [1.0, 2.0, 1.0, 0.0], tau=1.8)
    found = d.diagnose(SIZE, WEIGHTS, THROUGH, RAY_ID, torch.tensor([0.02, 0.0]), chosen)
    assert (found.samples, found.chosen) == (8, 3)
    assert found.share_samples == pytest.approx(3 / 8)
    assert found.share_gradient == pytest.approx(14 / 16)
    assert found.tau == pytest.approx(1.8)
    assert found.effective == pytest.approx(16**2 / 86)
    assert found.hard_rays == pytest.approx(13 / 16)
    assert (found.empty, found.surface, found.occluded) == (d.Picked(5, 1), d.Picked(2, 2), d.Picked(1, 0))
    assert (sum(found.pixel_loss.counts), found.pixel_loss.below) == (1, 1)
    assert (sum(found.weights.counts), found.weights.below) == (4, 4)
    again = json.loads(json.dumps(dataclasses.asdict(found)))
    assert again["surface"] == {"all": 2, "chosen": 2}


def test_diagnosis_ignores_non_finite_gradients() -> None:
    size = SIZE.clone()
    size[[0, 4]] = torch.tensor([math.nan, math.inf])
    chosen = selection([1, 2, 5], [1.0, 2.0, 1.0])
    loss = torch.zeros(2)
    expected = d.diagnose(SIZE, WEIGHTS, THROUGH, RAY_ID, loss, chosen)
    assert d.diagnose(size, WEIGHTS, THROUGH, RAY_ID, loss, chosen) == expected


def test_diagnosis_of_no_samples_is_zero() -> None:
    none = torch.zeros(0)
    found = d.diagnose(none, none, none, none.long(), torch.zeros(3), Miner(images=1).choose(none[:, None], step=0))
    assert (found.samples, found.chosen, found.share_samples, found.share_gradient, found.tau) == (0, 0, 0.0, 0.0, 0.0)


def test_diagnosis_rejects_a_wrong_shape_and_names_the_tensor() -> None:
    with pytest.raises(ConfigError, match=r"`transmittance` must have the shape of `size`, \[8\]"):
        d.diagnose(SIZE, WEIGHTS, THROUGH[:3], RAY_ID, torch.zeros(2), selection([0], [1.0]))

"""The fused step of several processes, against that of one process with all rays."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from support.fused_ranks import CASES, STEPS, Seen
from support.rank_steps import launch

Both = tuple[dict[str, Seen], dict[str, Seen]]


@pytest.fixture(scope="module")
def one_and_two(tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = tmp_path_factory.mktemp("fused-ranks")
    one, two = (launch(folder, world, "support.fused_ranks") for world in (1, 2))
    return one, two  # type: ignore[return-value]


@pytest.mark.parametrize("case", CASES)
def test_reports_of_two_ranks_are_those_of_one(case: str, one_and_two: Both) -> None:
    one, two = (seen[case].reports for seen in one_and_two)
    assert len(one) == len(two) == STEPS
    assert (one[0].rays, one[0].marched) == (two[0].rays, two[0].marched)
    for alone, both in zip(one, two, strict=True):
        assert (both.finite, both.lost) == (True, 0)
        assert both.loss == pytest.approx(alone.loss, rel=5e-3)
        assert both.marched == pytest.approx(alone.marched, rel=0.02)
        assert both.trained == pytest.approx(alone.trained, rel=0.1, abs=2)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_choose_the_samples_of_one_in_the_first_step(case: str, one_and_two: Both) -> None:
    one, two = (seen[case].chosen for seen in one_and_two)
    assert len(one) > 0
    assert one == two


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_end_with_the_model_of_one(case: str, one_and_two: Both) -> None:
    """Adam divides by the size of gradients, so rounding of a gradient near 0 can move a parameter by a whole step."""
    one, two = (seen[case].tensors for seen in one_and_two)
    assert one.keys() == two.keys()
    for name in (name for name in one if "layers" in name or "table" in name):
        if one[name].is_floating_point() and one[name].numel():
            distance = (one[name].double() - two[name].double()).norm() / one[name].double().norm().clamp_min(1e-12)
            assert float(distance) < 0.02, (name, float(distance))
    torch.testing.assert_close(two["sampler.values"], one["sampler.values"], rtol=0.05, atol=1e-3)

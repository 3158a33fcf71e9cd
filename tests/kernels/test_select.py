"""Compaction: samples by hand, every backend against the reference, and errors."""

from __future__ import annotations

import pytest
import torch

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.select.op import compact
from support.device import device_of

pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.mark.parametrize("backend", ["reference", "cpu", "gpu"])
def test_compact_matches_hand_computed_result(backend: dispatch.Backend) -> None:
    device = device_of(backend)
    keep = torch.tensor([True, False, False, True, True], device=device)
    with dispatch.force(backend):
        out = compact(keep, torch.tensor([2, 0, 3], device=device))
    assert out.index.tolist() == [0, 3, 4]
    assert out.count.tolist() == [1, 0, 2]
    assert out.first.tolist() == [0, 1, 1]


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("rays", [0, 1, 63, 1000])
def test_compact_kernels_match_reference(rays: int, backend: dispatch.Backend) -> None:
    device = device_of(backend)
    count = torch.randint(0, 9, (rays,))
    keep = torch.rand(int(count.sum())) < 0.4
    with dispatch.force(backend):
        got = compact(keep.to(device), count.to(device))
    with dispatch.force("reference"):
        expected = compact(keep, count)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a.cpu(), b)


def test_compact_rejects_counts_that_do_not_sum_to_the_samples() -> None:
    with pytest.raises(ConfigError, match="`count` must sum to the 3 samples, got 2"):
        compact(torch.ones(3, dtype=torch.bool), torch.tensor([2]))

"""`ray_resampling` of nerfacc 0.2 and 0.3: rays by hand, and a search interval by interval."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from raymine.compat.nerfacc_v03 import ray_resampling
from raymine.errors import ConfigError


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def edges_by_search(start: list[float], end: list[float], weights: list[float], n: int) -> list[float]:
    """The edges of one ray: for each, go along the intervals until the CDF exceeds its value."""
    missing = max(1e-5 - sum(weights), 0.0)
    weights = [w + missing / len(weights) for w in weights]
    total = sum(weights)
    edges = []
    for k in range(n + 1):
        left = (k + 0.5) / (n + 1)
        for a, b, weight in zip(start, end, weights, strict=True):
            if left < weight / total:
                edges.append(a + (b - a) * left * total / weight)
                break
            left -= weight / total
    return edges


def test_even_weights_give_even_intervals() -> None:
    info, start, end = ray_resampling(torch.tensor([[0, 2]]), column(0, 1), column(1, 2), torch.ones(2), 3)
    assert info.tolist() == [[0, 3]]
    torch.testing.assert_close(start, column(0.25, 0.75, 1.25))
    torch.testing.assert_close(end, column(0.75, 1.25, 1.75))


def test_a_gap_between_intervals_is_jumped_over() -> None:
    info, start, end = ray_resampling(torch.tensor([[0, 2]]), column(0, 10), column(1, 11), torch.tensor([1.0, 3.0]), 1)
    assert info.tolist() == [[0, 1]]
    # A quarter and three quarters of the mass: the start of the second interval, and two thirds into it.
    torch.testing.assert_close(start, column(10.0))
    torch.testing.assert_close(end, column(10 + 2 / 3))


def test_rays_equal_a_search_interval_by_interval_and_empty_ones_stay_empty() -> None:
    rng = torch.Generator().manual_seed(0)
    count = torch.tensor([5, 0, 1, 12, 0, 3])
    first = count.cumsum(0) - count
    start = torch.rand(21, generator=rng, dtype=torch.float64) + torch.arange(21) * 2
    end = start + torch.rand(21, generator=rng, dtype=torch.float64)
    weights = torch.rand(21, generator=rng, dtype=torch.float64)
    weights[7] = 0.0
    weights[18:] = torch.tensor([0.0, 1e-7, 0.0])
    info, new_start, new_end = ray_resampling(
        torch.stack((first, count), -1).int(), start[:, None], end[:, None], weights, 8
    )
    assert info.dtype == torch.int32
    assert info.tolist() == [[0, 8], [8, 0], [8, 8], [16, 8], [24, 0], [24, 8]]
    for ray in (0, 2, 3, 5):
        rows = slice(int(first[ray]), int(first[ray] + count[ray]))
        edges = edges_by_search(start[rows].tolist(), end[rows].tolist(), weights[rows].tolist(), 8)
        at = slice(int(info[ray, 0]), int(info[ray].sum()))
        expected = torch.tensor(edges, dtype=torch.float64)
        torch.testing.assert_close(new_start[at, 0], expected[:-1])
        torch.testing.assert_close(new_end[at, 0], expected[1:])


def test_no_samples_give_no_samples() -> None:
    info, start, end = ray_resampling(torch.zeros(2, 2, dtype=torch.int32), column(), column(), torch.zeros(0), 4)
    assert info.tolist() == [[0, 0], [0, 0]]
    assert (start.shape, end.shape) == ((0, 1), (0, 1))


def test_wrong_arguments_are_refused_by_name() -> None:
    info, t = torch.tensor([[0, 2]]), column(0, 1)
    with pytest.raises(ConfigError, match="`n_samples` must be in 1"):
        ray_resampling(info, t, t + 1, torch.ones(2), 0)
    with pytest.raises(ConfigError, match=r"`weights` must have shape \[2\], got \[2, 1\]"):
        ray_resampling(info, t, t + 1, torch.ones(2, 1), 4)
    with pytest.raises(ConfigError, match="all 2 samples together"):
        ray_resampling(torch.tensor([[0, 1]]), t, t + 1, torch.ones(2), 4)

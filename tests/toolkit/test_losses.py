"""The distortion loss: a ray by hand, the double sum of its definition, gradients, and non-finite rays."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from raymine.errors import ConfigError
from raymine.toolkit.losses import distortion_loss
from raymine.toolkit.pack import Pack, pack_counts
from support.pages import run_page


def test_documentation_examples_run() -> None:
    run_page("losses.md")


def double_sum(weights: Tensor, t_starts: Tensor, t_ends: Tensor) -> float:
    """The loss of one ray by its definition."""
    w, m = weights.tolist(), ((t_starts + t_ends) / 2).tolist()
    pairs = sum(a * b * abs(x - y) for a, x in zip(w, m, strict=True) for b, y in zip(w, m, strict=True))
    return pairs + sum(a * a * d for a, d in zip(w, (t_ends - t_starts).tolist(), strict=True)) / 3


def ragged(seed: int, rays: int, most: int = 7) -> tuple[Tensor, Tensor, Tensor, Pack]:
    """Weights, starts and ends in float64, with gaps between intervals; some rays have no samples."""
    rng = torch.Generator().manual_seed(seed)
    pack = pack_counts(torch.randint(0, most, (rays,), generator=rng))
    n = int(pack.count.sum())
    knots = (torch.rand(2 * n, generator=rng, dtype=torch.float64) + 0.01).cumsum(0)
    return torch.rand(n, generator=rng, dtype=torch.float64), knots[::2], knots[1::2], pack


def test_distortion_loss_matches_hand_computed_ray() -> None:
    """Weights 1/2 and 1/4 in 0..1 and 2..4: 2 * 1/8 * 2.5 + 1/3 * (1/4 * 1 + 1/16 * 2) = 0.625 + 0.125."""
    ray = torch.tensor([0.5, 0.25]), torch.tensor([0.0, 2.0]), torch.tensor([1.0, 4.0])
    assert distortion_loss(*ray).item() == pytest.approx(0.75)
    assert distortion_loss(*ray, pack=pack_counts(torch.tensor([0, 2]))).tolist() == pytest.approx([0.0, 0.75])


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(0, 8))
def test_packed_distortion_loss_matches_double_sum(seed: int, rays: int) -> None:
    *values, pack = ragged(seed, rays)
    got = distortion_loss(*values, pack=pack)
    assert got.shape == (rays,)
    for r in range(rays):
        own = slice(int(pack.first[r]), int(pack.first[r] + pack.count[r]))
        assert got[r].item() == pytest.approx(double_sum(*(x[own] for x in values)), abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 9))
def test_batched_distortion_loss_matches_double_sum_and_packed_rays(seed: int, n: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    weights = torch.rand(2, 3, n, generator=rng, dtype=torch.float64)
    edges = 10 * torch.rand(2, 3, n + 1, generator=rng, dtype=torch.float64).sort(-1).values
    values = weights, edges[..., :-1], edges[..., 1:]
    got = distortion_loss(*values)
    assert got.shape == (2, 3)
    assert got[1, 2].item() == pytest.approx(double_sum(*(x[1, 2] for x in values)), abs=1e-12)
    flat = distortion_loss(*(x.reshape(-1) for x in values), pack=pack_counts(torch.full((6,), n)))
    assert torch.allclose(got.reshape(-1), flat)


def test_distortion_loss_in_float32_does_not_depend_on_the_start_of_the_ray() -> None:
    """In float32, on rays that begin at 0 and at 4096."""
    rng = torch.Generator().manual_seed(0)
    weights = torch.rand(5, 64, generator=rng).softmax(-1)
    edges = (torch.randint(1, 8, (5, 65), generator=rng) / 16).cumsum(-1)
    near, far = (distortion_loss(weights, e[:, :-1], e[:, 1:]) for e in (edges, edges + 4096))
    exact = distortion_loss(weights.double(), edges[:, :-1].double(), edges[:, 1:].double())
    assert torch.allclose(near.double(), exact, rtol=1e-5)
    assert torch.allclose(far.double(), exact, rtol=1e-5)


def test_distortion_loss_passes_gradcheck() -> None:
    *values, pack = ragged(11, 6)
    leaves = [x.clone().requires_grad_() for x in values]
    assert torch.autograd.gradcheck(lambda w, a, b: distortion_loss(w, a, b, pack=pack), leaves)
    leaves = [x[:12].reshape(2, 6).clone().requires_grad_() for x in values]
    assert torch.autograd.gradcheck(distortion_loss, leaves)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_non_finite_ray_has_a_non_finite_loss_and_does_not_affect_others(bad: float, which: int) -> None:
    pack = pack_counts(torch.tensor([3, 2, 0, 4]))
    _, t_starts, t_ends, _ = ragged(5, 5, 30)
    values = [torch.full((9,), 0.2, dtype=torch.float64), t_starts[:9], t_ends[:9]]
    clean = [x.clone().requires_grad_() for x in values]
    dirty = [x.clone() for x in values]
    dirty[which][3] = bad
    for x in dirty:
        x.requires_grad_()
    good, got = distortion_loss(*clean, pack=pack), distortion_loss(*dirty, pack=pack)
    assert not bool(torch.isfinite(got[1]))
    others = torch.tensor([0, 2, 3])
    assert torch.equal(got[others], good[others])
    wanted = torch.autograd.grad(good.sum(), clean)
    seen = torch.autograd.grad(got.sum(), dirty)
    outside = torch.tensor([0, 1, 2, 5, 6, 7, 8])
    for a, b in zip(seen, wanted, strict=True):
        assert torch.equal(a[outside], b[outside])
    assert not all(bool(torch.isfinite(a[3:5]).all()) for a in seen)


def test_distortion_loss_without_samples_is_zero() -> None:
    empty = torch.zeros(0, requires_grad=True)
    loss = distortion_loss(empty, empty, empty, pack=pack_counts(torch.zeros(2, dtype=torch.int64)))
    assert loss.tolist() == [0.0, 0.0]
    loss.sum().backward()
    assert distortion_loss(*[torch.zeros(3, 0)] * 3).tolist() == [0.0] * 3
    assert distortion_loss(*[torch.zeros(0, 5)] * 3).shape == (0,)
    assert distortion_loss(torch.ones(1), torch.zeros(1), torch.ones(1)).item() == pytest.approx(1 / 3)


def test_invalid_arguments_raise_config_error() -> None:
    with pytest.raises(ConfigError, match=r"`t_ends` must have the shape of `weights`, \[4\], got \[3\]"):
        distortion_loss(torch.zeros(4), torch.zeros(4), torch.zeros(3))
    with pytest.raises(ConfigError, match="all 4 samples together; `count` sums to 3"):
        distortion_loss(*[torch.zeros(4)] * 3, pack=pack_counts(torch.tensor([3])))
    with pytest.raises(ConfigError, match="single number"):
        distortion_loss(*[torch.zeros(())] * 3)

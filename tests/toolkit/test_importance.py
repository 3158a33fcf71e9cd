"""Inverse-CDF sampling: a ray by hand, plain loops, properties, degenerate CDFs, and errors."""

from __future__ import annotations

import bisect
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raymine.errors import ConfigError
from raymine.toolkit.importance import edges_between, importance_samples, inverse_cdf, searchsorted
from raymine.toolkit.pack import pack_counts
from support.packs import ascending, ragged
from support.pages import run_page


def test_documentation_examples_run() -> None:
    run_page("importance.md")


def resample_loop(t: list[float], c: list[float], n: int, offset: float) -> tuple[list[float], list[float]]:
    """Edges and samples of one ray by a plain loop."""
    samples = []
    for k in range(n):
        u = c[0] + (k + offset) * (c[-1] - c[0]) / n
        i = min(max(bisect.bisect_right(c, u) - 1, 0), len(c) - 2)
        rise = c[i + 1] - c[i]
        samples.append(t[i] + ((u - c[i]) / rise if rise > 0 else 0.5) * (t[i + 1] - t[i]))
    if n == 1:
        return [t[0], t[-1]], samples
    inner = [(a + b) / 2 for a, b in pairwise(samples)]
    first = max(samples[0] - (inner[0] - samples[0]), t[0])
    last = min(samples[-1] + (samples[-1] - inner[-1]), t[-1])
    return [first, *inner, last], samples


def test_importance_samples_match_hand_computed_ray() -> None:
    """Mass 1/4 in 0..1, none in 1..2, 3/4 in 2..4; four samples at u = 1/8, 3/8, 5/8, 7/8."""
    edges, cdfs = torch.tensor([0.0, 1.0, 2.0, 4.0]), torch.tensor([0.0, 0.25, 0.25, 1.0])
    got = importance_samples(edges, cdfs, 4)
    assert got.samples.tolist() == pytest.approx([0.5, 2 + 1 / 3, 3.0, 3 + 2 / 3])
    inner = [(0.5 + 7 / 3) / 2, (7 / 3 + 3) / 2, (3 + 11 / 3) / 2]
    assert got.edges.tolist() == pytest.approx([0.0, *inner, 4.0])
    assert got.edge_pack is None
    assert got.sample_pack is None
    shifted = importance_samples(edges, cdfs, 4, stratified=torch.tensor(0.0))
    assert shifted.samples.tolist() == pytest.approx([0.0, 2.0, 2 + 2 / 3, 3 + 1 / 3])


def test_searchsorted_matches_hand_computed_indices() -> None:
    """Neighbours are on the value's own ray; beyond its ends they are the outermost two."""
    keys, values = torch.tensor([0.0, 1.0, 0.0, 1.0, 2.0]), torch.tensor([0.5, 1.5, 2.5, -1.0, 1.0])
    packs = pack_counts(torch.tensor([2, 3])), pack_counts(torch.tensor([1, 4]))
    left, right = searchsorted(keys, values, packs)
    assert left.tolist() == [0, 3, 3, 2, 3]
    assert right.tolist() == [1, 4, 4, 2, 4]
    left, right = searchsorted(keys[2:], values[1:])
    assert left.tolist() == [1, 1, 0, 1]
    assert right.tolist() == [2, 2, 0, 2]


def test_searchsorted_in_empty_rays_returns_minus_one() -> None:
    packs = pack_counts(torch.tensor([0, 2, 0])), pack_counts(torch.tensor([1, 1, 2]))
    left, right = searchsorted(torch.tensor([1.0, 2.0]), torch.tensor([1.5, 1.5, 0.0, 9.0]), packs)
    assert left.tolist() == [-1, 0, -1, -1]
    assert right.tolist() == [-1, 1, -1, -1]
    assert searchsorted(torch.zeros(2, 0), torch.zeros(2, 3)).left.tolist() == [[-1] * 3] * 2
    assert searchsorted(torch.tensor([1.0, 2.0]), torch.tensor([torch.nan])).left.tolist() == [0]
    none = pack_counts(torch.zeros(0, dtype=torch.int64))
    assert searchsorted(torch.zeros(0), torch.zeros(0), (none, none)).left.shape == (0,)


@pytest.mark.parametrize("offset", [0.5, 0.0, 0.99])
@pytest.mark.parametrize("n", [1, 2, 17])
def test_batched_rays_match_plain_loop(n: int, offset: float) -> None:
    edges, cdfs = ascending(n, 6, 9, torch.float64)
    got = importance_samples(edges.reshape(2, 3, 9), cdfs.reshape(2, 3, 9), n, stratified=torch.full((2, 3), offset))
    for r in range(6):
        want_edges, want = resample_loop(edges[r].tolist(), cdfs[r].tolist(), n, offset)
        assert got.samples.reshape(6, n)[r].tolist() == pytest.approx(want)
        assert got.edges.reshape(6, n + 1)[r].tolist() == pytest.approx(want_edges)


def test_packed_rays_match_plain_loop() -> None:
    edges, cdfs, pack = ragged(3, 20, 9, torch.float64)
    counts = torch.randint(0, 6, (20,), generator=torch.Generator().manual_seed(0))
    counts[3], offsets = 1, torch.rand(20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got = importance_samples(edges, cdfs, counts, pack=pack, stratified=offsets)
    assert got.edge_pack is not None
    assert got.sample_pack is not None
    for r in range(20):
        own = slice(int(pack.first[r]), int(pack.first[r] + pack.count[r]))
        t, c = edges[own].tolist(), cdfs[own].tolist()
        n = int(counts[r]) if t else 0
        assert int(got.sample_pack.count[r]) == n
        assert int(got.edge_pack.count[r]) == (n + 1 if n else 0)
        if n:
            want_edges, want = ([t[0]] * (n + 1), t * n) if len(t) == 1 else resample_loop(t, c, n, float(offsets[r]))
            start = int(got.sample_pack.first[r])
            assert got.samples[start : start + n].tolist() == pytest.approx(want)
            start = int(got.edge_pack.first[r])
            assert got.edges[start : start + n + 1].tolist() == pytest.approx(want_edges)
    assert len(got.samples) == int(got.sample_pack.count.sum())
    assert len(got.edges) == int(got.edge_pack.count.sum())


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 8), st.integers(1, 12))
def test_packed_rays_equal_batched_rays(seed: int, rays: int, k: int, n: int) -> None:
    edges, cdfs = ascending(seed, rays, k + 1)
    pack, offset = pack_counts(torch.full((rays,), k + 1)), torch.rand(rays)
    one = importance_samples(edges, cdfs, n, stratified=offset)
    flat = importance_samples(edges.flatten(), cdfs.flatten(), n, pack=pack, stratified=offset)
    listed = importance_samples(edges, cdfs, torch.full((rays,), n), stratified=offset)
    for got in (flat, listed):
        assert torch.allclose(got.samples.reshape(rays, n), one.samples, atol=1e-5)
        assert torch.allclose(got.edges.reshape(rays, n + 1), one.edges, atol=1e-5)
    found, packs = searchsorted(edges, cdfs), (pack, pack)
    base = pack.first[:, None]
    for got_index, want in zip(searchsorted(edges.flatten(), cdfs.flatten(), packs), found, strict=True):
        assert torch.equal(got_index.reshape(rays, k + 1) - base, want)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.sampled_from([0.0, 0.0, 1e-30, 1e-12, 1e-3, 0.2, 1.0]), min_size=1, max_size=12),
    st.integers(1, 40),
    st.floats(0, 1),
    st.floats(1e-3, 1e3),
    st.sampled_from([torch.float16, torch.float32, torch.float64]),
)
def test_samples_are_finite_sorted_and_within_the_ray(
    weights: list[float], n: int, offset: float, far: float, dtype: torch.dtype
) -> None:
    """Also for CDFs that are flat in parts, flat everywhere, or almost flat."""
    cdfs = torch.tensor([0.0, *weights], dtype=dtype).cumsum(0)
    edges = (torch.linspace(0, 1, len(cdfs), dtype=torch.float64) ** 2 * far).to(dtype)
    for pack in (None, pack_counts(torch.tensor([len(cdfs)]))):
        o = torch.full((1,) if pack else (), offset)
        got = importance_samples(edges, cdfs, n, pack=pack, stratified=o)
        assert got.edges.dtype == dtype
        for x in (got.samples.flatten(), got.edges.flatten()):
            assert bool(torch.isfinite(x).all())
            assert bool((x[1:] >= x[:-1]).all())
            assert float(x[0]) >= float(edges[0])
            assert float(x[-1]) <= float(edges[-1])


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 10_000), st.integers(1, 12), st.sampled_from([torch.float32, torch.float64]))
def test_inverse_cdf_at_its_knots_returns_the_edges(seed: int, k: int, dtype: torch.dtype) -> None:
    edges, cdfs = ascending(seed, 3, k + 1, dtype)
    cdfs = cdfs + torch.arange(k + 1) * 0.1  # no two alike
    assert torch.equal(inverse_cdf(edges, cdfs, cdfs), edges)
    pack = pack_counts(torch.full((3,), k + 1))
    assert torch.equal(inverse_cdf(edges.flatten(), cdfs.flatten(), cdfs.flatten(), (pack, pack)), edges.flatten())


def test_inverse_cdf_below_a_knot_does_not_exceed_its_edge() -> None:
    """Rounding must not move a sample past its interval: 4,000 knots in float32."""
    edges, cdfs = ascending(0, 2000, 3)
    below = torch.nextafter(cdfs[:, 1:], torch.zeros(()))
    assert bool((inverse_cdf(edges, cdfs, below) <= edges[:, 1:]).all())


def test_inverse_cdf_handles_flat_parts_and_values_out_of_range() -> None:
    edges, cdfs = torch.tensor([0.0, 1.0, 3.0, 4.0]), torch.tensor([0.0, 0.0, 1.0, 1.0])
    u = torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0, torch.inf, -torch.inf])
    assert inverse_cdf(edges, cdfs, u).tolist() == [0.0, 1.0, 2.0, 3.5, 4.0, 4.0, 0.0]
    assert bool(torch.isnan(inverse_cdf(edges, cdfs, torch.tensor([torch.nan]))).all())


def test_samples_follow_the_distribution() -> None:
    """The share of the samples below a distance is the CDF there, to within one sample."""
    edges, cdfs = ascending(5, 4, 7, torch.float64)
    for offset in (torch.full((4,), 0.5), torch.rand(4, generator=torch.Generator().manual_seed(2))):
        samples = importance_samples(edges, cdfs, 5000, stratified=offset).samples
        for r in range(4):
            share = (cdfs[r] - cdfs[r, 0]) / (cdfs[r, -1] - cdfs[r, 0])
            below = torch.tensor([float((samples[r] < t).double().mean()) for t in edges[r]])
            assert torch.allclose(below.double(), share, atol=1.5 / 5000)


def test_stratified_offsets_are_uniform_and_one_per_ray() -> None:
    torch.manual_seed(0)
    edges = torch.tensor([0.0, 1.0]).expand(4000, 2)
    got = importance_samples(edges, edges, 4, stratified=True).samples
    offsets = got * 4 - torch.arange(4)
    assert torch.allclose(offsets, offsets[:, :1].expand(-1, 4), atol=1e-5)
    assert float(offsets.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(offsets.std()) == pytest.approx(12**-0.5, abs=0.02)
    torch.manual_seed(0)
    assert torch.equal(got, importance_samples(edges, edges, 4, stratified=True).samples)


@pytest.mark.parametrize("bad", [0.0, torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("packed", [False, True])
def test_flat_or_non_finite_cdf_gives_evenly_spaced_samples(bad: float, packed: bool) -> None:
    """Other rays are not affected."""
    edges = torch.tensor([[1.0, 2.0, 5.0]]).repeat(3, 1)
    cdfs = torch.tensor([[0.0, 0.5, 1.0], [0.0, 0.0, bad], [0.0, 1.0, 1.0]])
    if packed:
        got = importance_samples(edges.flatten(), cdfs.flatten(), 4, pack=pack_counts(torch.full((3,), 3)))
    else:
        got = importance_samples(edges, cdfs, 4)
    assert got.samples[0].tolist() == pytest.approx([1.25, 1.75, 2.75, 4.25])
    assert got.samples[1].tolist() == pytest.approx([1.5, 2.5, 3.5, 4.5])
    assert got.edges[1].tolist() == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0])
    assert got.samples[2].tolist() == pytest.approx([1.125, 1.375, 1.625, 1.875])


def test_zero_rays_zero_edges_and_single_edges_are_handled() -> None:
    assert importance_samples(torch.zeros(0, 3), torch.zeros(0, 3), 4).edges.shape == (0, 5)
    none = pack_counts(torch.zeros(0, dtype=torch.int64))
    assert importance_samples(torch.zeros(0), torch.zeros(0), 4, pack=none).edges.shape == (0, 5)
    empty = importance_samples(torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.int64), pack=none)
    assert empty.edges.shape == empty.samples.shape == (0,)
    bare = importance_samples(torch.zeros(2, 0), torch.zeros(2, 0), 3)
    assert bare.edges.tolist() == [[0.0] * 4] * 2
    pack = pack_counts(torch.tensor([0, 1, 0]))
    batched = importance_samples(torch.tensor([7.0]), torch.tensor([0.3]), 2, pack=pack)
    assert batched.edges.tolist() == [[0.0] * 3, [7.0] * 3, [0.0] * 3]
    listed = importance_samples(torch.tensor([7.0]), torch.tensor([0.3]), torch.tensor([2, 2, 2]), pack=pack)
    assert listed.sample_pack is not None
    assert listed.sample_pack.count.tolist() == [0, 2, 0]
    assert listed.edges.tolist() == [7.0] * 3
    assert importance_samples(torch.tensor([7.0]), torch.tensor([0.3]), 2).edges.tolist() == [7.0] * 3
    assert edges_between(torch.zeros(2, 0), torch.zeros(2), torch.ones(2)).shape == (2, 0)


def test_strided_inputs_match_and_samples_have_no_gradient() -> None:
    edges, cdfs = ascending(1, 5, 8)
    wide = torch.stack((edges, cdfs), -1).requires_grad_()
    got = importance_samples(wide[..., 0], wide[..., 1], 6)
    assert not got.samples.requires_grad
    assert torch.equal(got.samples, importance_samples(edges, cdfs, 6).samples)


def test_invalid_arguments_raise_config_error() -> None:
    edges, pack = torch.zeros(6), pack_counts(torch.tensor([2, 3]))
    with pytest.raises(ConfigError, match=r"`cdfs` must have the shape of `edges`, \[6\], got \[5\]"):
        importance_samples(edges, torch.zeros(5), 2)
    with pytest.raises(ConfigError, match="`n` must be at least 1, got 0"):
        importance_samples(edges, edges, 0)
    with pytest.raises(ConfigError, match="all 6 samples together; `count` sums to 5"):
        importance_samples(edges, edges, 2, pack=pack)
    with pytest.raises(ConfigError, match=r"`n` must have shape \[2\], got \[3\]"):
        importance_samples(edges[:5], edges[:5], torch.tensor([1, 2, 3]), pack=pack)
    with pytest.raises(ConfigError, match=r"counts per ray need edges of shape"):
        importance_samples(edges, edges, torch.tensor([1]))
    with pytest.raises(ConfigError, match=r"`stratified` must have shape \[2\]"):
        importance_samples(torch.zeros(2, 3), torch.zeros(2, 3), 2, stratified=torch.zeros(3))
    with pytest.raises(ConfigError, match="Give `packs`"):
        searchsorted(torch.zeros(3, 2), torch.zeros(2, 2))
    with pytest.raises(ConfigError, match="both packs must have the same rays, got 2 and 1"):
        searchsorted(edges[:5], edges, (pack, pack_counts(torch.tensor([6]))))
    with pytest.raises(ConfigError, match="all 6 samples together; `count` sums to 5"):
        searchsorted(edges[:5], edges, (pack, pack))

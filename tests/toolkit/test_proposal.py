"""Proposal sampling: spacing, CDFs and losses by hand and by plain loops, learning, gated gradients, and errors."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from raymine.errors import ConfigError
from raymine.toolkit.pack import pack_counts
from raymine.toolkit.proposal import (
    ProposalEstimator,
    ProposalGate,
    RaySpan,
    anneal_exponent,
    blurred_interlevel_loss,
    density_cdf,
    get_proposal_requires_grad_fn,
    interlevel_loss,
    propose,
    sharpened,
    transmittance_cdf,
)
from support.packs import ragged
from support.pages import run_page


def test_documentation_examples_run() -> None:
    run_page("proposal.md")


class Bins(torch.nn.Module):
    """A density that is constant in each of 32 parts of near .. far: the simplest proposal that can learn."""

    def __init__(self, near: float = 1.0, far: float = 5.0) -> None:
        super().__init__()
        self.near, self.far = near, far
        self.raw = torch.nn.Parameter(torch.zeros(32))

    def forward(self, t_starts: Tensor, t_ends: Tensor) -> Tensor:
        where = ((t_starts + t_ends) / 2 - self.near) / (self.far - self.near) * 32
        return torch.nn.functional.softplus(self.raw)[where.long().clamp(0, 31)]


def bump(t_starts: Tensor, t_ends: Tensor) -> Tensor:
    """The true density, with a peak at t = 3."""
    return 30 * torch.exp(-(((t_starts + t_ends) / 2 - 3) ** 2) / (2 * 0.1**2))


def transmittance(densities: Tensor, t_starts: Tensor, t_ends: Tensor) -> Tensor:
    return 1 - density_cdf(densities, t_starts, t_ends)[..., :-1]


def test_density_cdf_matches_hand_computation() -> None:
    """Every interval has a transmittance of one half."""
    density, edges = torch.full((1, 3), math.log(2.0)), torch.arange(4.0)[None]
    assert density_cdf(density, edges[:, :-1], edges[:, 1:])[0].tolist() == pytest.approx([0, 0.5, 0.75, 1])
    assert transmittance_cdf(torch.tensor([[1.0, 0.5, 0.25]])).tolist() == [[0.0, 0.5, 0.75, 1.0]]


def test_density_cdf_handles_infinite_and_nan_densities() -> None:
    starts = torch.tensor([[0.0, 1.0, 1.0, 2.0]])
    ends = torch.tensor([[1.0, 1.0, 2.0, 3.0]])
    inf, nan = math.inf, math.nan
    assert density_cdf(torch.tensor([[0.0, inf, 0.0, 1.0]]), starts, ends).tolist() == [[0.0, 0.0, 0.0, 0.0, 1.0]]
    assert density_cdf(torch.tensor([[inf, 1.0, 0.0, 1.0]]), starts, ends).tolist() == [[0.0, 1.0, 1.0, 1.0, 1.0]]
    broken = density_cdf(torch.tensor([[0.0, 0.0, nan, 1.0]]), starts, ends)[0]
    assert torch.isnan(broken).tolist() == [False, False, False, True, False]
    half = density_cdf(torch.ones(1, 2, dtype=torch.float16), torch.zeros(1, 2), torch.ones(1, 2))
    assert half.dtype == torch.float32


def test_density_cdf_passes_gradcheck() -> None:
    edges = torch.rand(3, 6, dtype=torch.float64).sort(-1).values
    leaves = [torch.rand(3, 5, dtype=torch.float64), edges[:, :-1].clone(), edges[:, 1:].clone()]
    assert torch.autograd.gradcheck(density_cdf, [x.requires_grad_() for x in leaves])


def test_annealing_matches_hand_computation() -> None:
    assert anneal_exponent(0, 100) == 0
    assert anneal_exponent(10, 100) == pytest.approx(1 / 1.9)
    assert anneal_exponent(100, 100) == anneal_exponent(1000, 100) == 1
    assert anneal_exponent(30, 100, slope=1.0) == pytest.approx(0.3)
    cdfs = torch.tensor([[0.0, 0.1, 0.1, 1.0]])
    assert sharpened(cdfs, 1.0) is cdfs
    assert sharpened(cdfs, 0.5)[0].tolist() == pytest.approx([0, 0.25, 0.25, 1])
    assert sharpened(cdfs, 0.0)[0].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert sharpened(cdfs, 200.0)[0].tolist() == pytest.approx([0, 0, 0, 1])
    flat = torch.tensor([[0.3, 0.3], [math.nan, 1.0]])
    assert torch.equal(sharpened(flat, 0.5).nan_to_num(9), flat.nan_to_num(9))
    with pytest.raises(ConfigError, match="`exponent` must be 0 or more, got -1"):
        sharpened(cdfs, -1.0)
    with pytest.raises(ConfigError, match="`steps` must be at least 1"):
        anneal_exponent(1, 0)


def looped_interlevel_loss(t: list[float], c: list[float], pt: list[float], pc: list[float]) -> list[float]:
    """The interlevel loss of one ray over all pairs of intervals; all edges differ, so overlaps are unambiguous."""
    losses = []
    for i in range(len(t) - 1):
        w = c[i + 1] - c[i]
        low, high = max(t[i], pt[0]), min(t[i + 1], pt[-1])
        touched = [
            j for j in range(len(pt) - 1) if pt[j] < max(high, pt[0] + 1e-9) and pt[j + 1] > min(low, pt[-1] - 1e-9)
        ]
        bound = sum(pc[j + 1] - pc[j] for j in touched)
        losses.append(max(0.0, w - bound) ** 2 / (w + 1e-7))
    return losses


def test_interlevel_loss_matches_hand_computation() -> None:
    """Weights 0.8 and 0.2 against a proposal of 0.5 in 0..1 and 0.5 in 1..2: only 0.8 in 0..0.9 exceeds its bound."""
    edges, cdfs = torch.tensor([0.0, 0.9, 2.0]), torch.tensor([0.0, 0.8, 1.0])
    got = interlevel_loss(edges, cdfs, torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 0.5, 1.0]))
    assert got.tolist() == pytest.approx([0.09 / 0.8, 0.0])


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 10_000), st.integers(1, 7), st.integers(1, 7))
def test_interlevel_loss_matches_plain_loop_over_overlaps(seed: int, n: int, m: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    edges, cdfs = (torch.rand(3, n + 1, generator=rng, dtype=torch.float64).sort(-1).values for _ in range(2))
    other, others = (torch.rand(3, m + 1, generator=rng, dtype=torch.float64).sort(-1).values for _ in range(2))
    other = other * 1.2 - 0.1
    got = interlevel_loss(edges, cdfs, other, others)
    packs = pack_counts(torch.full((3,), n + 1)), pack_counts(torch.full((3,), m + 1))
    flat = interlevel_loss(edges.flatten(), cdfs.flatten(), other.flatten(), others.flatten(), packs=packs)
    assert torch.allclose(flat.reshape(3, n), got)
    for r in range(3):
        if float(edges[r, 0]) > float(other[r, 0]) and float(edges[r, -1]) < float(other[r, -1]):
            want = looped_interlevel_loss(*(x[r].tolist() for x in (edges, cdfs, other, others)))
            assert got[r].tolist() == pytest.approx(want)


def test_packed_interlevel_loss_passes_gradcheck() -> None:
    edges, cdfs, pack = ragged(1, 8, 7, torch.float64)
    other, others, other_pack = ragged(2, 8, 9, torch.float64)
    leaves = [cdfs.requires_grad_(), others.requires_grad_()]

    def run(c: Tensor, o: Tensor) -> Tensor:
        return interlevel_loss(edges, c, other, o, packs=(pack, other_pack))

    assert run(*leaves).shape == (int((pack.count - 1).clamp_min(0).sum()),)
    assert torch.autograd.gradcheck(run, leaves)
    none = pack_counts(torch.zeros(8, dtype=torch.int64))
    bare = interlevel_loss(edges, cdfs, edges[:0], edges[:0], packs=(pack, none))
    weights = torch.cat([c.diff() for c in cdfs.split(pack.count.tolist()) if len(c)])
    assert torch.allclose(bare, weights**2 / (weights + 1e-7))


def brute_force_blurred_loss(
    t: list[float], c: list[float], pt: list[float], pc: list[float], blur: float, eps: float = 1e-5
) -> list[float]:
    """The blurred loss of one ray: every final interval is moved by many offsets within the box, and cut up anew."""
    offsets = [blur * (2 * (k + 0.5) / 2000 - 1) for k in range(2000)]
    losses = []
    for low, high, p in zip(pt, pt[1:], (b - a for a, b in itertools.pairwise(pc)), strict=False):
        w = 0.0
        for a, b, own in zip(t, t[1:], (b - a for a, b in itertools.pairwise(c)), strict=False):
            shares = (max(0.0, min(b + u, high) - max(a + u, low)) / (b - a) for u in offsets)
            w += own * sum(shares) / len(offsets)
        losses.append(max(0.0, w - p) ** 2 / (p + eps))
    return losses


def test_blurred_interlevel_loss_matches_hand_computation() -> None:
    """Weight 1 in 0.4..0.6, blurred by 0.1, is a triangle over 0.3..0.7: 1/8 lies below 0.4, and 3/8 in 0.4..0.5."""
    edges, cdfs = torch.tensor([0.4, 0.6]), torch.tensor([0.0, 1.0])
    proposal = torch.tensor([0.0, 0.4, 0.5, 1.0]), torch.tensor([0.0, 0.1, 0.2, 0.9])
    got = blurred_interlevel_loss(edges, cdfs, *proposal, 0.1, eps=0.0)
    assert got.tolist() == pytest.approx([(1 / 8 - 0.1) ** 2 / 0.1, (3 / 8 - 0.1) ** 2 / 0.1, 0.0], rel=1e-4)


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 5), st.sampled_from([0.3, 0.03, 0.003]))
def test_blurred_interlevel_loss_matches_brute_force(seed: int, n: int, m: int, blur: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    edges, cdfs = (torch.rand(2, n + 1, generator=rng, dtype=torch.float64).sort(-1).values for _ in range(2))
    other, others = (torch.rand(2, m + 1, generator=rng, dtype=torch.float64).sort(-1).values for _ in range(2))
    got = blurred_interlevel_loss(edges, cdfs, other, others, blur, eps=0.1)
    packs = pack_counts(torch.full((2,), n + 1)), pack_counts(torch.full((2,), m + 1))
    flat = blurred_interlevel_loss(
        edges.flatten(), cdfs.flatten(), other.flatten(), others.flatten(), blur, packs=packs, eps=0.1
    )
    assert torch.equal(flat.reshape(2, m), got)
    single = blurred_interlevel_loss(*(x.float() for x in (edges, cdfs, other, others)), blur, eps=0.1)
    assert torch.allclose(single.double(), got, atol=1e-4)
    for r in range(2):
        want = brute_force_blurred_loss(*(x[r].tolist() for x in (edges, cdfs, other, others)), blur, 0.1)
        assert got[r].tolist() == pytest.approx(want, abs=2e-3)


def test_packed_blurred_interlevel_loss_passes_gradcheck() -> None:
    edges, cdfs, pack = ragged(1, 8, 7, torch.float64)
    other, others, other_pack = ragged(2, 8, 9, torch.float64)

    def run(c: Tensor, o: Tensor) -> Tensor:
        return blurred_interlevel_loss(edges, c, other, o, 0.2, packs=(pack, other_pack), eps=0.1)

    leaves = [cdfs.requires_grad_(), others.requires_grad_()]
    assert run(*leaves).shape == (int((other_pack.count - 1).clamp_min(0).sum()),)
    assert torch.autograd.gradcheck(run, leaves)
    none = pack_counts(torch.zeros(8, dtype=torch.int64))
    bare = blurred_interlevel_loss(edges[:0], cdfs[:0], other, others, 0.2, packs=(none, other_pack))
    assert not bool(bare.any()), "no proposal is too small for a ray without weights"


def test_blurred_interlevel_loss_is_continuous_in_the_final_edges() -> None:
    """The histogram bound jumps when an edge passes that of a proposal; the blurred loss does not."""
    proposal = torch.tensor([0.0, 0.5, 1.0]).double(), torch.tensor([0.0, 0.1, 1.0]).double()
    cdfs = torch.tensor([0.0, 1.0]).double()
    at = [torch.tensor([0.2, x]).double() for x in (0.499999, 0.500001)]
    before, behind = (float(interlevel_loss(edges, cdfs, *proposal).sum()) for edges in at)
    assert abs(before - behind) > 0.5
    before, behind = (float(blurred_interlevel_loss(edges, cdfs, *proposal, 0.03).sum()) for edges in at)
    assert before == pytest.approx(behind, rel=1e-3)
    with pytest.raises(ConfigError, match="`blur` must be above 0 and finite, got 0"):
        blurred_interlevel_loss(at[0], cdfs, *proposal, 0.0)


def test_open_end_leaves_the_rest_of_the_transmittance_to_no_interval() -> None:
    density, edges = torch.full((1, 3), math.log(2.0)), torch.arange(4.0)[None]
    found = density_cdf(density, edges[:, :-1], edges[:, 1:], opaque_end=False)
    assert found[0].tolist() == pytest.approx([0, 0.5, 0.75, 0.875])
    span = RaySpan(torch.ones(2), torch.full((2,), 5.0), spacing="uniform")

    def faint(t_starts: Tensor, t_ends: Tensor) -> Tensor:
        return 1e-3 * bump(t_starts, t_ends)

    closed, opened = (propose([(faint, 64)], 32, span, opaque_end=end).edges for end in (True, False))
    near_the_end, near_the_peak = (closed > 0.95).float().mean(), ((opened - 0.5).abs() < 0.1).float().mean()
    assert float(near_the_end) > 0.8
    assert float(near_the_peak) > 0.8


def test_propose_and_the_estimator_place_the_same_intervals() -> None:
    span = RaySpan(torch.full((3,), 1.0), 5.0)
    draws = torch.rand(3, 3)
    found = propose([(bump, 16), (bump, 12)], 9, span, stratified=draws, requires_grad=True, exponent=0.5)
    estimator = ProposalEstimator()
    got = estimator.sample([bump, bump], [16, 12], 9, span, stratified=draws, requires_grad=True, exponent=0.5)
    t = span.distances(found.edges)
    assert torch.equal(got.t_starts, t[:, :-1])
    assert estimator.pending is not None
    assert all(torch.equal(a.cdfs, b.cdfs) for a, b in zip(found.levels, estimator.pending[0], strict=True))
    with pytest.raises(ConfigError, match="near or far of the `span` must be a tensor"):
        propose([(bump, 16)], 9, RaySpan(1.0, 5.0, 3))


def test_proposal_gate_opens_less_often_over_time() -> None:
    gate, since = get_proposal_requires_grad_fn(target=4.0, num_steps=20), 0
    opened = []
    for step in range(80):
        due = since > min(step / 20, 1.0) * 4.0
        since = 1 if due else since + 1
        assert gate(step) == due
        opened += [step] if due else []
    assert opened[:2] == [1, 2]
    assert {b - a for a, b in zip(opened[-6:], opened[-5:], strict=False)} == {5}
    again = ProposalGate(4.0, 20)
    again.since = gate.since
    assert [gate(s) for s in range(80, 100)] == [again(s) for s in range(80, 100)]
    with pytest.raises(ConfigError, match="`num_steps` must be at least 1"):
        ProposalGate(5.0, 0)


@pytest.mark.parametrize("spacing", ["uniform", "lindisp"])
@pytest.mark.parametrize("stratified", [False, True])
def test_sampled_intervals_are_sorted_contiguous_and_within_the_ray(spacing: str, stratified: bool) -> None:
    torch.manual_seed(0)
    near, far = torch.rand(7) + 0.5, torch.rand(7) + 4
    span = RaySpan(near, far, spacing=spacing)  # type: ignore[arg-type]
    asked = []

    def density(t_starts: Tensor, t_ends: Tensor) -> Tensor:
        asked.append(t_starts.shape)
        return bump(t_starts, t_ends)

    estimator = ProposalEstimator()
    t_starts, t_ends = estimator.sample([density, density], [16, 12], 9, span, stratified=stratified)
    assert asked == [(7, 16), (7, 12)]
    assert t_starts.shape == t_ends.shape == (7, 9)
    assert torch.equal(t_starts[:, 1:], t_ends[:, :-1])
    assert bool((t_starts <= t_ends).all())
    assert bool((t_starts >= near[:, None] - 1e-5).all())
    assert bool((t_ends <= far[:, None] + 1e-5).all())
    assert estimator.pending is None
    draws = torch.rand(3, 7)
    one, two = (estimator.sample([density, density], [16, 12], 9, span, stratified=draws).t_starts for _ in range(2))
    assert torch.equal(one, two)


def test_samples_are_uniform_without_proposals_or_with_exponent_zero() -> None:
    span = RaySpan(1.0, 5.0, 2, "uniform")
    even = torch.linspace(1, 5, 9)
    assert torch.allclose(ProposalEstimator().sample([], [], 8, span).t_starts, even[:-1].expand(2, 8))
    got = ProposalEstimator().sample([bump], [4], 8, span, exponent=0.0)
    assert torch.allclose(got.t_ends, even[1:].expand(2, 8), atol=1e-5)
    sharp = ProposalEstimator().sample([bump], [64], 64, span)
    assert float(((sharp.t_starts - 3).abs() < 0.4).float().mean()) > 0.9


def test_proposals_learn_the_position_of_the_density() -> None:
    """Two proposals that start with constant density learn the peak, and the final samples concentrate there."""
    torch.manual_seed(0)
    nets = torch.nn.ModuleList([Bins(), Bins()])
    optimiser = torch.optim.Adam(nets.parameters(), lr=0.05)
    estimator, gate = ProposalEstimator(optimiser), ProposalGate(target=2.0, num_steps=100)
    span = RaySpan(1.0, 5.0, 64, "uniform")

    def gathered() -> float:
        t_starts, t_ends = estimator.sample(list(nets), [24, 24], 16, span)
        return float((((t_starts + t_ends) / 2 - 3).abs() < 0.35).float().mean())

    losses, before = [], gathered()
    for step in range(400):
        due = gate(step)
        t_starts, t_ends = estimator.sample(
            list(nets),
            [24, 24],
            16,
            span,
            stratified=True,
            requires_grad=due,
            exponent=anneal_exponent(step, 100),
        )
        seen = transmittance(bump(t_starts, t_ends), t_starts, t_ends)
        loss = estimator.update_every_n_steps(seen, due)
        losses += [loss] if due else []
    assert 100 < len(losses) < 250
    assert sum(losses[-10:]) < 0.1 * sum(losses[:10])
    assert before < 0.3
    assert gathered() > 0.6


def test_proposals_get_gradients_only_with_requires_grad() -> None:
    net = Bins()
    before = net.raw.detach().clone()
    estimator = ProposalEstimator(torch.optim.SGD(net.parameters(), lr=1.0))
    span = RaySpan(1.0, 5.0, 8)
    density = torch.full((8, 6), 2.0, requires_grad=True)
    t_starts, t_ends = estimator.sample([net], [12], 6, span, requires_grad=False)
    seen = transmittance(density * bump(t_starts, t_ends), t_starts, t_ends)
    modes = []
    estimator.sample([lambda a, b: modes.append(torch.is_grad_enabled()) or net(a, b)], [4], 2, span)
    assert modes == [False], "no graph is built that nobody asked for"
    assert estimator.compute_loss(seen).item() == 0
    assert estimator.update_every_n_steps(seen, False) == 0
    assert net.raw.grad is None
    assert torch.equal(net.raw, before)

    with torch.no_grad():  # `requires_grad` decides, not the surrounding mode
        got = estimator.sample([net], [12], 6, span, requires_grad=True)
    assert not got.t_starts.requires_grad
    with pytest.raises(ConfigError, match=r"`transmittance` must have the shape of the final intervals, \[8, 6\]"):
        estimator.compute_loss(seen[:, 1:])
    seen = transmittance(density * bump(*got), *got)
    single = estimator.compute_loss(seen)
    single.backward()
    assert net.raw.grad is not None
    assert bool(net.raw.grad.any())
    assert density.grad is None, "the final densities are not trained by the proposals' loss"
    assert estimator.compute_loss(seen).item() == 0, "it is used up"

    estimator.sample([net], [12], 6, span, requires_grad=True)
    estimator.sample([net], [12], 6, span, requires_grad=True)
    estimator.sample([net], [12], 6, span, requires_grad=False)
    loss = estimator.update_every_n_steps(seen, True, loss_scaler=3.0)
    assert loss == pytest.approx(3 * single.item(), rel=1e-4)
    assert not torch.equal(net.raw, before)


def test_scheduler_advances_with_every_step() -> None:
    net = Bins()
    optimiser = torch.optim.SGD(net.parameters(), lr=1.0)
    estimator = ProposalEstimator(optimiser, torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.5))
    optimiser.step()  # torch warns if a scheduler steps before its optimiser
    span = RaySpan(1.0, 5.0, 2)
    estimator.update_every_n_steps(torch.ones(2, 3))
    got = estimator.sample([net], [4], 3, span, requires_grad=True)
    estimator.update_every_n_steps(transmittance(bump(*got), *got), True)
    assert optimiser.param_groups[0]["lr"] == 0.25


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_proposal_densities_give_finite_samples(bad: float) -> None:
    """NaN gives uniform samples and a NaN loss without an update; infinity is opaque."""
    net = Bins()
    with torch.no_grad():
        net.raw[16] = bad
    before = net.raw.detach().clone()
    estimator = ProposalEstimator(torch.optim.SGD(net.parameters(), lr=0.1))
    got = estimator.sample([net], [40], 10, RaySpan(1.0, 5.0, 3, "uniform"), requires_grad=True)
    assert bool(torch.isfinite(got.t_starts).all())
    loss = estimator.update_every_n_steps(transmittance(bump(*got), *got), True)
    if math.isnan(bad):
        assert torch.allclose(got.t_starts, torch.linspace(1, 5, 11)[:-1].expand(3, 10), atol=1e-4)
        assert math.isnan(loss)
        assert torch.equal(net.raw.nan_to_num(9), before.nan_to_num(9))
    else:
        assert math.isfinite(loss)
        assert float(got.t_ends.max()) <= 3.2
        assert bool(torch.isfinite(net.raw[torch.arange(32) != 16]).all())


def test_zero_rays_and_rays_that_miss_give_finite_losses() -> None:
    net = Bins()
    estimator = ProposalEstimator(torch.optim.SGD(net.parameters(), lr=0.1))
    got = estimator.sample([net], [4], 3, RaySpan(1.0, 5.0, 0), requires_grad=True)
    assert got.t_starts.shape == (0, 3)
    assert estimator.update_every_n_steps(torch.zeros(0, 3), True) == 0
    span = RaySpan(torch.tensor([1.0, math.inf]), torch.tensor([5.0, math.inf]))
    got = estimator.sample([net], [4], 3, span, requires_grad=True)
    assert got.t_ends[1].tolist() == [0.0] * 3
    assert math.isfinite(estimator.update_every_n_steps(transmittance(bump(*got), *got), True))
    assert bool(torch.isfinite(net.raw).all())


def test_invalid_arguments_raise_config_error() -> None:
    estimator, span = ProposalEstimator(), RaySpan(1.0, 5.0, 2)
    with pytest.raises(ConfigError, match="one number per density, 1, got 2"):
        estimator.sample([bump], [4, 4], 3, span)
    with pytest.raises(ConfigError, match=r"a density must have the shape of its intervals, \[2, 4\], got \[2\]"):
        estimator.sample([lambda a, b: a[:, 0]], [4], 3, span)
    with pytest.raises(ConfigError, match=r"`stratified` must have shape \[2, 2\], got \[2\]"):
        estimator.sample([bump], [4], 3, span, stratified=torch.zeros(2))
    with pytest.raises(ConfigError, match="there is no optimiser to update"):
        estimator.update_every_n_steps(torch.ones(2, 3), True)
    estimator.optimizer = torch.optim.SGD(Bins().parameters(), lr=1.0)
    with pytest.raises(ConfigError, match="Call `sample` with requires_grad=True first"):
        estimator.update_every_n_steps(torch.ones(2, 3), True)

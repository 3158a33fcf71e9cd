"""nerfacc's sampling, distortion and proposal estimator: documented results, both layouts, signatures and defaults."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch import Tensor

from raymine.compat.nerfacc import pdf
from raymine.compat.nerfacc.data_specs import RayIntervals, RaySamples
from raymine.compat.nerfacc.estimators import prop_net
from raymine.compat.nerfacc.estimators.base import AbstractEstimator
from raymine.compat.nerfacc.estimators.prop_net import PropNetEstimator, get_proposal_requires_grad_fn
from raymine.compat.nerfacc.losses import distortion
from raymine.compat.nerfacc.pdf import importance_sampling, searchsorted
from raymine.errors import ConfigError
from raymine.toolkit.proposal import ProposalEstimator, RaySpan, density_cdf

INFO = torch.tensor([[0, 2], [2, 3]])


def two_rays() -> RayIntervals:
    return RayIntervals(vals=torch.tensor([0.0, 1.0, 0.0, 1.0, 2.0]), packed_info=INFO)


def test_searchsorted_on_flattened_rays_returns_global_indices() -> None:
    values = RayIntervals(vals=torch.tensor([0.5, 1.5, 2.5]), packed_info=torch.tensor([[0, 1], [1, 2]]))
    left, right = searchsorted(two_rays(), values)
    assert left.tolist() == [0, 3, 3]
    assert right.tolist() == [1, 4, 4]
    by_index = RaySamples(vals=values.vals, ray_indices=torch.tensor([0, 1, 1]))
    keys = RaySamples(vals=two_rays().vals, ray_indices=torch.tensor([0, 0, 1, 1, 1]))
    assert torch.equal(searchsorted(keys, by_index)[0], left)
    assert torch.equal(searchsorted(two_rays(), by_index)[1], right)


def test_searchsorted_on_batched_rays_equals_clamped_torch_searchsorted() -> None:
    rng = torch.Generator().manual_seed(0)
    keys, values = (torch.rand(10, n, generator=rng).sort(-1).values for n in (30, 20))
    left, right = searchsorted(RayIntervals(vals=keys), RaySamples(vals=values))
    want = torch.searchsorted(keys, values, right=True)
    assert torch.equal(right, want.clamp(0, 29))
    assert torch.equal(left, (right - 1).clamp_min(0))


def test_searchsorted_accepts_mixed_layouts() -> None:
    """Batched values get indices within their ray, flattened values indices into the whole array."""
    batched = RayIntervals(vals=torch.tensor([[0.5, 0.7], [1.5, 2.5]]))
    left, right = searchsorted(two_rays(), batched)
    assert left.tolist() == [[0, 0], [1, 1]]
    assert right.tolist() == [[1, 1], [2, 2]]
    keys = RayIntervals(vals=torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]))
    flat = RaySamples(vals=torch.tensor([0.5, 1.5, 2.5]), packed_info=torch.tensor([[0, 1], [1, 2]]))
    assert searchsorted(keys, flat)[0].tolist() == [0, 4, 4]
    hollow = RayIntervals(vals=torch.tensor([0.0, 1.0]), packed_info=torch.tensor([[0, 0], [0, 2]]))
    assert searchsorted(hollow, batched)[1].tolist() == [[-1, -1], [1, 1]]


def test_importance_sampling_with_one_count_returns_batched_rays() -> None:
    intervals, samples = importance_sampling(two_rays(), torch.tensor([0.0, 0.5, 0.0, 0.5, 1.0]), 2)
    assert intervals.vals.tolist() == [[0.0, 0.5, 1.0], [0.0, 1.0, 2.0]]
    assert samples.vals.tolist() == [[0.25, 0.75], [0.5, 1.5]]
    assert intervals.packed_info is None
    deep = RayIntervals(vals=torch.rand(2, 3, 5).sort(-1).values)
    intervals, samples = importance_sampling(deep, deep.vals, 4)
    assert intervals.vals.shape == (2, 3, 5)
    assert samples.vals.shape == (2, 3, 4)


def test_importance_sampling_with_counts_per_ray_returns_flattened_rays() -> None:
    intervals, samples = importance_sampling(
        two_rays(), torch.tensor([0.0, 0.5, 0.0, 0.5, 1.0]), torch.tensor([2, 1]), stratified=False
    )
    assert intervals.vals.tolist() == [0.0, 0.5, 1.0, 0.0, 2.0]
    assert samples.vals.tolist() == [0.25, 0.75, 1.0]
    infos = [x.packed_info.tolist() for x in (intervals, samples) if x.packed_info is not None]
    assert infos == [[[0, 3], [3, 2]], [[0, 2], [2, 1]]]
    for got, want in (
        (intervals.ray_indices, [0, 0, 0, 1, 1]),
        (intervals.is_left, [True, True, False, True, False]),
        (intervals.is_right, [False, True, True, False, True]),
        (samples.ray_indices, [0, 0, 1]),
    ):
        assert got is not None
        assert got.tolist() == want
    intervals, _ = importance_sampling(RayIntervals(vals=torch.rand(2, 4)), torch.rand(2, 4), torch.tensor([0, 3]))
    assert intervals.packed_info is not None
    assert intervals.packed_info.tolist() == [[0, 0], [0, 4]]


def test_importance_sampling_matches_inverse_cdf_formula() -> None:
    """Sample s of n at u = c_0 + (s + 1/2) (c_K - c_0) / n; edges half-way, the outer ones mirrored and clipped."""
    rng = torch.Generator().manual_seed(1)
    edges, cdfs = (torch.rand(5, 40, generator=rng, dtype=torch.float64).sort(-1).values for _ in range(2))
    intervals, samples = importance_sampling(RayIntervals(vals=edges), cdfs, 25)
    for r in range(5):
        c, t = cdfs[r].tolist(), edges[r].tolist()
        want = []
        for s in range(25):
            u = c[0] + (s + 0.5) * (c[-1] - c[0]) / 25
            i = max(j for j in range(39) if c[j] <= u)
            want.append(t[i] + (u - c[i]) / (c[i + 1] - c[i]) * (t[i + 1] - t[i]))
        assert samples.vals[r].tolist() == pytest.approx(want)
        assert intervals.vals[r, 0].item() == pytest.approx(max(want[0] - (want[1] - want[0]) / 2, t[0]))
        assert intervals.vals[r, -1].item() == pytest.approx(min(want[-1] + (want[-1] - want[-2]) / 2, t[-1]))
        assert intervals.vals[r, 7].item() == pytest.approx((want[6] + want[7]) / 2)


def test_distortion_has_shape_n_rays_by_one_and_a_gradient() -> None:
    weights, starts = torch.tensor([0.5, 0.25, 1.0], requires_grad=True), torch.tensor([0.0, 2.0, 5.0])
    got = distortion(weights, starts, torch.tensor([1.0, 4.0, 6.0]), torch.tensor([0, 0, 2]), n_rays=3)
    assert got.shape == (3, 1)
    assert got[:, 0].tolist() == pytest.approx([0.75, 0.0, 1 / 3])
    got.sum().backward()
    assert weights.grad is not None


def density(t_starts: Tensor, t_ends: Tensor) -> Tensor:
    return 20 * torch.exp(-(((t_starts + t_ends) / 2 - 3) ** 2) * 50)


@pytest.mark.parametrize("kind", ["uniform", "lindisp"])
def test_prop_net_estimator_matches_toolkit_estimator(kind: str) -> None:
    scale, other = (torch.ones((), requires_grad=True) for _ in range(2))
    ours, theirs = ProposalEstimator(), PropNetEstimator()
    assert isinstance(theirs, AbstractEstimator)
    got = theirs.sampling([lambda a, b: scale * density(a, b)] * 2, [16, 8], 6, 3, 1.0, 5.0, kind, requires_grad=True)  # type: ignore[arg-type]
    span = RaySpan(1.0, 5.0, 3, kind)  # type: ignore[arg-type]
    want = ours.sample([lambda a, b: other * density(a, b)] * 2, [16, 8], 6, span, requires_grad=True)
    for a, b in zip(got, want, strict=True):
        assert a.shape == (3, 6)
        assert torch.allclose(a, b, atol=1e-5)
    assert len(theirs.prop_cache) == 3
    trans = 1 - density_cdf(density(*want), *want)[:, :-1]
    losses = theirs.compute_loss(trans, 2.0), ours.compute_loss(trans, 2.0)
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-4)
    grads = [torch.autograd.grad(loss, x)[0] for loss, x in zip(losses, (scale, other), strict=True)]
    assert torch.allclose(*grads, rtol=1e-3)
    assert theirs.prop_cache == []
    assert theirs.compute_loss(trans).item() == 0


def test_proposals_are_trained_only_with_requires_grad() -> None:
    raw = torch.nn.Parameter(torch.zeros(16))
    optimiser = torch.optim.Adam([raw], lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimiser, factor=1.0)
    optimiser.step()
    estimator = PropNetEstimator(optimiser, scheduler)

    def proposal(a: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.softplus(raw)[((a + b) * 2 - 4).long().clamp(0, 15)]

    gate, losses = get_proposal_requires_grad_fn(target=1.0, num_steps=50), []
    assert gate(0) is False
    for step in range(1, 120):
        due = gate(step)
        before = raw.detach().clone()
        got = estimator.sampling([proposal], [16], 12, 32, 1.0, 5.0, "uniform", stratified=True, requires_grad=due)
        loss = estimator.update_every_n_steps(1 - density_cdf(density(*got), *got)[:, :-1], due, loss_scaler=1.0)
        assert due or (loss == 0 and torch.equal(raw, before))
        losses += [loss] if due else []
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    with torch.no_grad():
        got = estimator.sampling([proposal], [16], 12, 2, 1.0, 5.0, "uniform")
    assert float(((got[0] - 3).abs() < 0.6).float().mean()) > 0.5


def test_estimator_accepts_zero_rays_and_rejects_bad_arguments() -> None:
    estimator = PropNetEstimator()
    got = estimator.sampling([density], [4], 3, 0, 1.0, 5.0, requires_grad=True)
    assert got[0].shape == (0, 3)
    assert math.isfinite(estimator.compute_loss(torch.zeros(0, 3)).item())
    with pytest.raises(ConfigError, match="an update needs an optimizer"):
        estimator.update_every_n_steps(torch.zeros(0, 3), True)
    with pytest.raises(ConfigError, match="one number per proposal, 1, got 0"):
        estimator.sampling([density], [], 3, 2, 1.0, 5.0)
    with pytest.raises(ConfigError, match="must be uniform or lindisp, got 'log'"):
        estimator.sampling([density], [4], 3, 2, 1.0, 5.0, "log")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="`near_plane` must be positive with lindisp"):
        estimator.sampling([density], [4], 3, 2, 0.0, 5.0)
    with pytest.raises(ConfigError, match="need `packed_info` or `ray_indices`"):
        importance_sampling(RayIntervals(vals=torch.zeros(3)), torch.zeros(3), 2)


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (searchsorted, {"sorted_sequence": None, "values": None}),
        (
            importance_sampling,
            {"intervals": None, "cdfs": None, "n_intervals_per_ray": None, "stratified": False},
        ),
        (distortion, dict.fromkeys(("weights", "t_starts", "t_ends", "ray_indices", "n_rays"))),
        (get_proposal_requires_grad_fn, {"target": 5.0, "num_steps": 1000}),
        (PropNetEstimator, {"optimizer": "None", "scheduler": "None"}),
        (
            PropNetEstimator.sampling,
            dict.fromkeys(
                ("self", "prop_sigma_fns", "prop_samples", "num_samples", "n_rays", "near_plane", "far_plane")
            )
            | {"sampling_type": "lindisp", "stratified": False, "requires_grad": False},
        ),
        (PropNetEstimator.compute_loss, {"self": None, "trans": None, "loss_scaler": 1.0}),
        (
            PropNetEstimator.update_every_n_steps,
            {"self": None, "trans": None, "requires_grad": False, "loss_scaler": 1.0},
        ),
    ],
)
def test_signatures_equal_those_of_nerfacc(function: object, signature: dict[str, object]) -> None:
    """None stands for an argument without a default, "None" for a default of None."""
    got = {
        name: None if p.default is p.empty else "None" if p.default is None else p.default
        for name, p in inspect.signature(function).parameters.items()  # type: ignore[arg-type]
    }
    assert list(got.items()) == list(signature.items())


def test_samples_from_weights_by_hand() -> None:
    """A quarter of the mass in 0..1, the rest in 1..2."""
    bins, weights = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[1.0, 3.0]])
    edges, samples = pdf._sample_from_weighted(bins, weights, 2, vmin=0.0, vmax=2.0)
    torch.testing.assert_close(samples, torch.tensor([[1.0, 1 + 2 / 3]]))
    torch.testing.assert_close(edges, torch.tensor([[1 - 1 / 3, 1 + 1 / 3, 2.0]]))
    edges, _ = pdf._sample_from_weighted(bins, weights, 2)
    torch.testing.assert_close(edges[0, -1], torch.tensor(2.0))
    torch.manual_seed(0)
    _, drawn = pdf._sample_from_weighted(bins.expand(500, 3), weights.expand(500, 2), 4, stratified=True)
    assert bool((drawn.diff(dim=-1) > 0).all())
    assert abs(float((drawn < 1).float().mean()) - 0.25) < 0.02
    with pytest.raises(ConfigError, match="`bins` must have one edge more than `weights`"):
        pdf._sample_from_weighted(bins, bins, 2)


@pytest.mark.parametrize("flat", [False, True])
def test_pdf_loss_equals_the_overlap_interval_by_interval(flat: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    edges, key = (torch.rand(3, n, generator=rng).sort(-1).values for n in (7, 5))
    key[:, 0], key[:, -1] = 0.0, 1.0
    weights, bound = (torch.rand(3, n, generator=rng) for n in (6, 4))
    cdfs, key_cdfs = (torch.cat((torch.zeros(3, 1), w.cumsum(-1)), -1) for w in (weights, bound))
    expected = torch.zeros(3, 6)
    for ray in range(3):
        for i in range(6):
            low, high = edges[ray, i], edges[ray, i + 1]
            outer = sum(float(bound[ray, j]) for j in range(4) if key[ray, j] <= high and key[ray, j + 1] > low)
            expected[ray, i] = max(0.0, float(weights[ray, i]) - outer) ** 2 / float(weights[ray, i] + 1e-7)
    torch.testing.assert_close(prop_net._lossfun_outer(edges, weights, key, bound), expected, rtol=1e-4, atol=1e-5)
    query, keys = RayIntervals(vals=edges), RayIntervals(vals=key)
    if flat:
        left, right = torch.ones(3, 7, dtype=torch.bool), torch.ones(3, 7, dtype=torch.bool)
        left[:, -1], right[:, 0] = False, False
        info = torch.stack((torch.arange(3) * 7, torch.full((3,), 7)), -1)
        query = RayIntervals(edges.flatten(), info, is_left=left.flatten(), is_right=right.flatten())
        keys = RayIntervals(key.flatten(), torch.stack((torch.arange(3) * 5, torch.full((3,), 5)), -1))
        cdfs, key_cdfs, expected = cdfs.flatten(), key_cdfs.flatten(), expected.flatten()
    torch.testing.assert_close(prop_net._pdf_loss(query, cdfs, keys, key_cdfs), expected, rtol=1e-4, atol=1e-5)
    if flat:
        query.is_left = None
        with pytest.raises(ConfigError, match="need `is_left` and `is_right`"):
            prop_net._pdf_loss(query, cdfs, keys, key_cdfs)

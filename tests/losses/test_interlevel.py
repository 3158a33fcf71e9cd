"""The interlevel loss of a step: by hand, gaps between samples, gradients, rays without samples, and errors."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from raymine.contracts import FieldOutput, LossView, Rays, Rendered, Round, Samples
from raymine.errors import ConfigError
from raymine.kernels.judge.op import Wanted
from raymine.kernels.packed import pack_counts
from raymine.losses import InterlevelLoss
from raymine.toolkit.proposal import blurred_interlevel_loss, interlevel_loss
from raymine.toolkit.spans import RaySpan


def samples_of(edges: list[list[float]], keep: list[int] | None = None) -> Samples:
    """Intervals between edges, ray by ray; `keep`: the intervals that are left, of all rays together."""
    rows = [(a, b, ray) for ray, own in enumerate(edges) for a, b in itertools.pairwise(own)]
    rows = rows if keep is None else [rows[i] for i in keep]
    start, end = torch.tensor([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
    ray = torch.tensor([row[2] for row in rows], dtype=torch.int64)
    return Samples(start, end, ray, *pack_counts(torch.bincount(ray, minlength=len(edges))))


def view_of(samples: Samples, weights: Tensor, *rounds: Round) -> LossView:
    n, b = samples.n_rays, len(samples)
    rays = Rays(torch.zeros(n, 3), torch.zeros(n, 3), torch.zeros(n), torch.ones(n))
    rendered = Rendered(torch.zeros(n, 3), torch.zeros(n), torch.zeros(n), weights)
    wanted = Wanted(torch.zeros(n, 3), torch.zeros(n, 3), torch.ones(n))
    return LossView({}, 0, rays, wanted, samples, FieldOutput(torch.zeros(b, 3), torch.zeros(b)), rendered, rounds)


def scale(rays: int) -> RaySpan:
    return RaySpan(torch.zeros(rays), torch.full((rays,), 2.0), spacing="uniform")


FINAL = samples_of([[0.0, 0.9, 2.0], [], [0.0, 1.0, 2.0]])
PROPOSED = samples_of([[0.0, 1.0, 2.0], [], [0.0, 0.5, 2.0]])
WEIGHTS = torch.tensor([0.8, 0.2, 0.1, 0.2])


def test_histogram_bound_matches_hand_computation() -> None:
    """Of ray 0, 0.8 in 0..0.9 exceeds 0.5; ray 1 has no samples; ray 2 stays within its proposal."""
    proposed = torch.tensor([0.5, 0.5, 0.3, 0.3])
    view = view_of(FINAL, WEIGHTS, Round(PROPOSED, proposed), Round(PROPOSED, proposed))
    assert InterlevelLoss()(view).item() == pytest.approx(2 * 0.09 / 0.8 / 3)
    assert InterlevelLoss(weight=0.5)(view).item() == pytest.approx(0.09 / 0.8 / 3)


def test_gradient_reaches_the_proposal_and_not_the_field() -> None:
    final, proposed = WEIGHTS.clone().requires_grad_(), torch.tensor([0.5, 0.5, 0.05, 0.1]).requires_grad_()
    for loss in (InterlevelLoss(), InterlevelLoss(blur=(0.03,))):
        proposed.grad = None
        loss(view_of(FINAL, final, Round(PROPOSED, proposed, scale=scale(3)))).backward()
        assert final.grad is None
        assert bool(torch.isfinite(proposed.grad).all())
        assert bool((proposed.grad <= 0).all()), "a larger weight never makes a bound worse"
        assert proposed.grad[0] < 0
        assert proposed.grad[3] < 0


def test_loss_is_that_of_the_toolkit_on_the_normalised_scale() -> None:
    proposed = torch.tensor([0.1, 0.2, 0.05, 0.1])
    found = InterlevelLoss(blur=(0.1,))(view_of(FINAL, WEIGHTS, Round(PROPOSED, proposed, scale=scale(3))))
    wanted = 0.0
    for ray, (own, other) in enumerate((([0.0, 0.9, 2.0], [0.0, 1.0, 2.0]), ([0.0, 1.0, 2.0], [0.0, 0.5, 2.0]))):
        weights, bounds = WEIGHTS[2 * ray : 2 * ray + 2], proposed[2 * ray : 2 * ray + 2]
        rows = torch.tensor(own) / 2, cdf(weights), torch.tensor(other) / 2, cdf(bounds)
        wanted += float(blurred_interlevel_loss(*rows, 0.1).sum())
    assert found.item() == pytest.approx(wanted / 3, rel=1e-4)


def cdf(weights: Tensor) -> Tensor:
    return torch.cat((weights.new_zeros(1), weights.cumsum(0)))


@pytest.mark.parametrize("blur", [(), (0.05,)])
def test_left_out_samples_count_as_samples_without_weight(blur: tuple[float, ...]) -> None:
    """The policy `prune` drops samples that are not seen, so that intervals have gaps between them."""
    edges = [[0.0, 0.3, 0.5, 0.9, 2.0], [0.1, 0.2, 0.6, 1.0, 1.9]]
    weights = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.7, 0.0, 0.0, 0.1])
    proposed = samples_of([[0.0, 0.4, 1.0, 2.0], [0.0, 0.5, 1.2, 2.0]])
    bounds = torch.tensor([0.1, 0.2, 0.3, 0.2, 0.2, 0.0])
    keep = weights.nonzero()[:, 0]
    term, rounds = InterlevelLoss(blur=blur), Round(proposed, bounds, scale=scale(2))
    whole = term(view_of(samples_of(edges), weights, rounds))
    pruned = term(view_of(samples_of(edges, keep.tolist()), weights[keep], rounds))
    assert whole.item() > 0
    assert pruned.item() == pytest.approx(whole.item(), rel=1e-5)


def test_loss_without_rounds_or_rays_is_zero() -> None:
    assert InterlevelLoss()(view_of(FINAL, WEIGHTS)).item() == 0
    nothing = samples_of([])
    empty = torch.zeros(0, requires_grad=True)
    for term in (InterlevelLoss(), InterlevelLoss(blur=(0.1,))):
        found = term(view_of(nothing, empty.detach(), Round(nothing, empty, scale=scale(0))))
        assert found.item() == 0
        found.backward()
    missed = samples_of([[], []])
    assert InterlevelLoss()(view_of(missed, empty, Round(missed, empty))).item() == 0


def test_histogram_bound_does_not_depend_on_the_scale() -> None:
    """Only the order of edges matters to it, so distances serve as well as s."""
    edges, other = torch.tensor([0.1, 0.4, 0.5, 3.0]), torch.tensor([0.2, 0.45, 2.0])
    rows = torch.tensor([0.0, 0.3, 0.4, 1.0]), torch.tensor([0.0, 0.2, 0.3])
    plain, squared = (interlevel_loss(power(edges), rows[0], power(other), rows[1]) for power in (torch.clone, square))
    assert torch.equal(plain, squared)


def square(value: Tensor) -> Tensor:
    return value * value


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="the interlevel loss needs a positive `weight`, got 0"):
        InterlevelLoss(weight=0.0)
    with pytest.raises(ConfigError, match=r"needs `blur` between 0 and 1, got \[0.03, 0.0\]"):
        InterlevelLoss(blur=(0.03, 0.0))
    one = Round(PROPOSED, WEIGHTS, scale=scale(3))
    with pytest.raises(ConfigError, match=r"one `blur` for each of 2 proposal rounds, got \[0.03\]"):
        InterlevelLoss(blur=(0.03,))(view_of(FINAL, WEIGHTS, one, one))
    with pytest.raises(ConfigError, match="needs a sampler whose rounds have a `scale`"):
        InterlevelLoss(blur=(0.03,))(view_of(FINAL, WEIGHTS, Round(PROPOSED, WEIGHTS)))

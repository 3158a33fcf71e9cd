"""Hard sample mining: the published algorithm by hand, unbiased draws, and degenerate cases."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from raymine.errors import ConfigError
from raymine.mining import PUBLISHED, HardConfig, Miner, MiningConfig, draw
from raymine.mining.capacity import LAG, Capacity
from support.draws import EVERY_DRAW, UNBIASED, each_draw, name_of

# Norms 5, 3, 1, 1: p = 0.5, 0.3, 0.1, 0.1.
FOUR = torch.tensor([[3.0, 4.0], [0.0, -3.0], [1.0, 0.0], [0.0, 1.0]])


def test_norms_and_probabilities_match_hand_computation() -> None:
    size = draw.norms(FOUR)
    assert size.tolist() == pytest.approx([5.0, 3.0, 1.0, 1.0])
    assert draw.probabilities(size).tolist() == pytest.approx([0.5, 0.3, 0.1, 0.1])


def test_tau_matches_hand_computation_in_both_of_its_forms() -> None:
    p = draw.probabilities(draw.norms(FOUR))
    # sum p^2 = 0.25 + 0.09 + 0.01 + 0.01 = 0.36, and sqrt(4 * 0.36) = 1.2.
    assert float(draw.concentration(p, 4)) == pytest.approx(1.2)
    # |p - u|^2 = 0.25^2 + 0.05^2 + 0.15^2 + 0.15^2 = 0.11, and (1 - 0.11 / 0.36)^(-1/2) = (0.25 / 0.36)^(-1/2) = 1.2.
    distance = float((p - 0.25).square().sum())
    assert distance == pytest.approx(0.11)
    assert (1 - distance / float(p.square().sum())) ** -0.5 == pytest.approx(1.2)


def test_running_average_of_tau_and_budget_match_hand_computation() -> None:
    miner = Miner(replace(PUBLISHED, high=1.0), images=4)
    first = miner.choose(FOUR, step=0)
    # tau_hat = 0.75 * 1 + 0.25 * 1.2 = 1.05; b = 4 / 1.05 = 3.81, of which 3 whole samples are taken.
    assert float(miner.tau) == pytest.approx(1.05)
    assert float(first.budget) == pytest.approx(4 / 1.05)
    assert len(first.index) == 3
    # Norms 7, 1, 1, 1: sum p^2 = 0.52, tau = sqrt(2.08); tau_hat = 0.75 * 1.05 + 0.25 * sqrt(2.08).
    second = miner.choose(torch.tensor([[7.0], [1.0], [-1.0], [1.0]]), step=1)
    assert float(second.tau) == pytest.approx(1.4422205)
    assert float(miner.tau) == pytest.approx(1.1480551)
    assert float(second.budget) == pytest.approx(3.4841533)


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (4, 2.0),  # tau 2: 4 / 2 = 2, just within half of 4
        (100, 10.0),  # tau 10
        (900, 45.0),  # tau 30: 30 is less than 0.05 * 900
    ],
)
def test_budget_is_clamped_to_its_limits(total: int, expected: float) -> None:
    gradient = torch.zeros(total, 1)
    gradient[1] = 3.0
    chosen = Miner(replace(PUBLISHED, rate=1.0), images=9).choose(gradient, step=0)
    assert float(chosen.tau) == pytest.approx(total**0.5)
    assert float(chosen.budget) == pytest.approx(expected)
    assert chosen.index.tolist() == [1]


def test_uniform_gradient_keeps_half_of_the_samples() -> None:
    chosen = Miner(PUBLISHED, images=9).choose(torch.ones(40, 3), step=0)
    assert float(chosen.tau) == pytest.approx(1.0)
    assert float(chosen.budget) == pytest.approx(20.0)
    assert len(chosen.index) == 20


def test_backward_sums_the_gradients_of_chosen_samples_only() -> None:
    # z = 2 x; loss = (0.5 z1 + 0.3 z2 + 0.1 z3 + 0.1 z4 - 1.6)^2 / 2. At x = 1 .. 4 the bracket is 3.6 - 1.6 = 2, so
    # g = 1, 0.6, 0.2, 0.2 whatever is chosen, and each sample adds g x = 1, 1.2, 0.6, 0.8 to the gradient of the 2.
    x, share = torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([[0.5], [0.3], [0.1], [0.1]])
    adds = torch.tensor([1.0, 1.2, 0.6, 0.8])
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 2.0)
    miner, seen = Miner(PUBLISHED, images=4), set()
    for step in range(20):
        model.zero_grad()
        mined = miner.backward(model, (x,), lambda z: ((share * z).sum() - 1.6).square() / 2, step=step)
        assert float(mined.loss) == pytest.approx(2.0)
        assert mined.selection.weight.tolist() == [1.0, 1.0]
        assert float(model.weight.grad) == pytest.approx(float(adds[mined.selection.index].sum()))
        seen.add(tuple(mined.selection.index.tolist()))
    assert len(seen) > 2


def test_gradient_size_uses_all_outputs_of_a_model() -> None:
    weight = torch.tensor([2.0, 3.0], requires_grad=True)

    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        return weight[0] * x, torch.stack((weight[1] * x, x * 0 + weight[0]), 1)

    def objective(a: Tensor, b: Tensor) -> Tensor:
        return 3 * a.sum() + 4 * b[:, 0].sum()

    x = torch.tensor([1.0, 2.0])
    mined = Miner(HardConfig(high=1.0), images=1).backward(model, (x,), objective, step=0)
    # Both samples have G = |(3, 4, 0)| = 5, so p = 1/2, b = 2 and both are certain.
    assert mined.selection.weight.tolist() == [1.0, 1.0]
    assert weight.grad.tolist() == pytest.approx([9.0, 12.0])


def worst_deviation(config: HardConfig, draws: int = 1500) -> float:
    """Largest |mean - full gradient| / standard error over the parameters of a linear model."""
    torch.manual_seed(0)
    x, target = torch.randn(40, 2), torch.randn(40, 2) * torch.logspace(-2, 1, 40)[:, None]
    model = torch.nn.Linear(2, 2, bias=False)

    def objective(z: Tensor) -> Tensor:
        return (z - target).square().mean()

    (full,) = torch.autograd.grad(objective(model(x)), model.weight)
    miner, found = Miner(config, images=10), []
    for step in range(draws):
        model.weight.grad = None
        miner.backward(model, (x,), objective, step=step)
        found.append(model.weight.grad)
    each = torch.stack(found)
    error = each.std(0) / draws**0.5
    return float(((each.mean(0) - full).abs() / error).max())


@pytest.mark.parametrize("config", UNBIASED, ids=lambda c: c.draw)
def test_mean_gradient_of_unbiased_draws_is_the_full_gradient(config: HardConfig) -> None:
    assert worst_deviation(config) < 4


@pytest.mark.parametrize("draws", ["poisson", "systematic", "multinomial"])
def test_mean_gradient_without_reweighting_is_biased(draws: str) -> None:
    assert worst_deviation(HardConfig(draw=draws, reweight="none"), draws=300) > 10


def inclusion(config: HardConfig, gradient: Tensor, draws: int) -> Tensor:
    """[B] the share of the draws in which each sample was chosen."""
    miner, hits = Miner(config, images=1), torch.zeros(len(gradient))
    for step in range(draws):
        hits[miner.choose(gradient, step=step).index] += 1
    return hits / draws


def without_replacement(p: list[float], b: int) -> list[float]:
    """Probability of each to be among b draws without replacement, by enumerating all orders."""
    out = [0.0] * len(p)
    for order in itertools.permutations(range(len(p)), b):
        chance, left = 1.0, 1.0
        for i in order:
            chance, left = chance * p[i] / left, left - p[i]
        for i in order:
            out[i] += chance
    return out


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (PUBLISHED, without_replacement([0.5, 0.3, 0.1, 0.1], 2)),
        (HardConfig(draw="poisson"), [1.0, 0.6, 0.2, 0.2]),
        (HardConfig(draw="systematic"), [1.0, 0.6, 0.2, 0.2]),
    ],
    ids=["multinomial", "poisson", "systematic"],
)
def test_inclusion_frequencies_match_expected_probabilities(config: HardConfig, expected: list[float]) -> None:
    draws = 3000
    found = inclusion(replace(config, low=0.5, high=0.5), FOUR, draws)
    sigma = [math.sqrt(max(e * (1 - e), 0) / draws) for e in expected]
    assert sum(expected) == pytest.approx(2.0)
    assert all(abs(f - e) <= 4 * s + 1e-6 for f, e, s in zip(found.tolist(), expected, sigma, strict=True))


def test_number_of_systematic_draws_varies_by_at_most_one() -> None:
    gradient = torch.logspace(0, 1, 101)[:, None]
    miner = Miner(HardConfig(draw="systematic", low=0.2, high=0.2), images=1)
    assert {len(miner.choose(gradient, step=step).index) for step in range(50)} <= {20, 21}
    assert len({tuple(miner.choose(gradient, step=step).index.tolist()) for step in range(9)}) > 4


def test_topk_chooses_the_largest_gradients() -> None:
    gradient = torch.tensor([1.0, 9.0, 2.0, 8.0, 7.0, 0.5, 0.1, 0.2])[:, None]
    chosen = Miner(HardConfig(draw="topk", reweight="none", low=0.4, high=0.4), images=1).choose(gradient, step=0)
    assert chosen.index.tolist() == [1, 3, 4]  # 0.4 * 8 = 3.2


@each_draw
@settings(max_examples=40, deadline=None)
@given(
    size=st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=60),
    low=st.floats(0.01, 1.0),
    step=st.integers(0, 1000),
)
def test_draws_return_distinct_samples_with_non_zero_gradient(
    config: HardConfig, size: list[float], low: float, step: int
) -> None:
    gradient = torch.tensor(size)[:, None]
    chosen = Miner(replace(config, low=low, high=max(low, 0.5)), images=3).choose(gradient, step=step)
    assert bool((gradient[chosen.index] > 0).all())
    assert bool((chosen.index.diff() > 0).all())  # ascending, so distinct
    assert bool((torch.isfinite(chosen.weight) & (chosen.weight >= 1 - 1e-6)).all())
    if config.draw in ("multinomial", "topk"):
        wanted = max(1, math.floor(float(chosen.budget)))
        assert len(chosen.index) == min(wanted, int((gradient > 0).sum()))


@each_draw
def test_zero_gradients_choose_nothing_and_keep_tau(config: HardConfig) -> None:
    miner = Miner(config, images=3)
    miner.choose(FOUR, step=0)
    before = float(miner.tau)
    chosen = miner.choose(torch.zeros(6, 4), step=1)
    assert (len(chosen.index), len(chosen.weight), float(chosen.tau), float(miner.tau)) == (0, 0, 0.0, before)


@each_draw
@pytest.mark.parametrize("marched", [None, 50])
def test_no_samples_choose_nothing_and_keep_tau(config: HardConfig, marched: int | None) -> None:
    miner = Miner(config, images=3)
    chosen = miner.choose(torch.zeros(0, 4), marched=marched, step=0)
    assert (len(chosen.index), len(chosen.weight), float(chosen.tau), float(miner.tau)) == (0, 0, 0.0, 1.0)
    assert chosen.index.dtype == torch.int64


def test_a_step_without_samples_leaves_parameters_without_gradient() -> None:
    model = torch.nn.Linear(3, 2)
    mined = Miner(images=3).backward(model, (torch.zeros(0, 3),), lambda z: z.square().sum(), step=0)
    assert float(mined.loss) == 0
    assert model.weight.grad is None


def test_single_sample_is_certain_by_multinomial_and_half_chance_by_systematic() -> None:
    one = torch.tensor([[2.0]])
    assert Miner(PUBLISHED, images=3).choose(one, step=0).index.tolist() == [0]
    miner = Miner(images=3)
    found = [miner.choose(one, step=step) for step in range(400)]
    assert all(chosen.weight.tolist() in ([], [2.0]) for chosen in found)  # b = 0.5: weight 2, so unbiased
    assert 150 < sum(len(chosen.index) for chosen in found) < 250


@pytest.mark.parametrize("draws", ["multinomial", "topk"])
def test_full_budget_chooses_every_sample_with_a_gradient(draws: str) -> None:
    gradient = torch.ones(9, 2)
    gradient[[2, 5]] = 0
    chosen = Miner(HardConfig(draw=draws, reweight="none", low=1.0, high=1.0), images=3).choose(gradient, step=0)
    assert chosen.index.tolist() == [0, 1, 3, 4, 6, 7, 8]


@pytest.mark.parametrize("config", UNBIASED, ids=name_of)
def test_certain_samples_have_weight_one(config: HardConfig) -> None:
    chosen = Miner(replace(config, low=1.0, high=1.0), images=3).choose(torch.ones(9, 2), step=0)
    assert chosen.index.tolist() == list(range(9))
    assert chosen.weight.tolist() == pytest.approx([1.0] * 9)


@each_draw
def test_non_finite_gradients_are_never_chosen_and_do_not_affect_others(config: HardConfig) -> None:
    torch.manual_seed(0)
    good = torch.rand(200, 3)
    good[::2] = 0
    bad = good.clone()
    bad[0, 1], bad[8, 2], bad[20:100:2] = math.nan, math.inf, -math.inf
    for step in range(30):
        expected, found = (Miner(config, images=3).choose(g, step=step) for g in (good, bad))
        assert bool((found.index % 2 == 1).all())
        assert torch.equal(expected.index, found.index)
        assert torch.equal(expected.weight, found.weight)
        assert torch.equal(expected.tau, found.tau)


def test_marched_counts_omitted_samples_as_zero_gradients() -> None:
    whole = torch.zeros(12, 2)
    whole[:4] = FOUR
    for config in EVERY_DRAW:
        expected = Miner(config, images=2).choose(whole, step=3)
        found = Miner(config, images=2).choose(FOUR, marched=12, step=3)
        assert torch.equal(expected.tau, found.tau)
        assert torch.equal(expected.budget, found.budget)
        assert torch.equal(expected.index, found.index)
        assert torch.equal(expected.weight, found.weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_draws_do_not_depend_on_the_gradient_dtype(dtype: torch.dtype) -> None:
    expected = Miner(images=3).choose(FOUR, step=5)
    found = Miner(images=3).choose(FOUR.to(dtype), step=5)
    assert torch.equal(expected.index, found.index)
    assert torch.equal(expected.weight, found.weight)


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> Callable[[HardConfig, float], Miner]:
    """Makes miners that treat the CPU as a CUDA device, where memory is allocated before the number chosen is known.

    share: share of the marched samples that was chosen in earlier steps.
    """

    def remember(self: Capacity, share: Tensor) -> None:
        self.shares[int(self.turn) % LAG] = share
        self.turn += 1

    monkeypatch.setattr(Capacity, "_remember", remember)

    def make(config: HardConfig, share: float = 1.0) -> Miner:
        miner = Miner(config, images=3)
        miner._capacity.cuda = True
        miner._capacity.shares.fill_(share)
        return miner

    return make


@each_draw
def test_padding_entries_have_zero_weight_and_repeat_chosen_samples(
    config: HardConfig, roomy: Callable[[HardConfig], Miner]
) -> None:
    gradient = torch.linspace(0.1, 3.0, 400)[:, None].repeat(1, 2)
    gradient[0], gradient[1] = math.nan, 0.0
    tight = Miner(config, images=3).choose(gradient, step=2)
    found = roomy(config).choose(gradient, step=2)
    live = found.weight > 0
    assert int(live.sum()) == len(tight.index) < len(found.index)
    index, order = found.index[live].sort()
    assert torch.equal(index, tight.index)
    assert torch.allclose(found.weight[live][order], tight.weight)
    assert found.weight[~live].unique().tolist() == [0.0]
    assert set(found.index[~live].tolist()) <= set(tight.index.tolist())
    assert bool(torch.isfinite(gradient[found.index] * found.weight[:, None]).all())


def test_multinomial_draw_limited_by_capacity_stays_unbiased(roomy: Callable[[HardConfig, float], Miner]) -> None:
    gradient, sums = torch.linspace(0.5, 1.5, 1000)[:, None], []
    for step in range(200):
        miner = roomy(HardConfig(draw="multinomial"), 0.01)
        chosen = miner.choose(gradient, step=step)
        # The capacity is 1.5 * 1 % of 1000 plus 256; the last of these keys lost the race and only sets the weights.
        assert int((chosen.weight > 0).sum()) == 271 - 1
        sums.append((gradient[chosen.index, 0] * chosen.weight).sum())
    each = torch.stack(sums)
    assert abs(float(each.mean()) - 1000) < 4 * float(each.std()) / 200**0.5


def test_padding_entries_of_zero_gradients_have_zero_weight(roomy: Callable[[HardConfig], Miner]) -> None:
    for config in EVERY_DRAW:
        chosen = roomy(config).choose(torch.zeros(600, 2), step=0)
        assert chosen.weight.abs().sum() == 0


def copy_into(miner: Miner, saved: dict[str, Tensor]) -> None:
    for name, value in miner.tensors().items():
        value.copy_(saved[name])


@each_draw
def test_restored_miner_continues_bit_for_bit(config: HardConfig) -> None:
    torch.manual_seed(0)
    gradients = torch.rand(20, 50, 4) ** 4
    whole, first, second = (Miner(config, images=5) for _ in range(3))
    expected = [whole.choose(g, step=i) for i, g in enumerate(gradients)]
    found = [first.choose(g, step=i) for i, g in enumerate(gradients[:10])]
    copy_into(second, {name: value.clone() for name, value in first.tensors().items()})
    found += [second.choose(g, step=10 + i) for i, g in enumerate(gradients[10:])]
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a.index, b.index)
        assert torch.equal(a.weight, b.weight)
        assert torch.equal(a.budget, b.budget)
    assert torch.equal(whole.tau, second.tau)


@pytest.mark.parametrize("config", EVERY_DRAW[:6], ids=name_of)
def test_a_draw_is_a_function_of_seed_and_step(config: HardConfig) -> None:
    gradient = torch.linspace(1, 2, 200)[:, None]

    def index(seed: int, step: int) -> list[int]:
        return Miner(config, images=3).choose(gradient, seed=seed, step=step).index.tolist()

    assert index(1, 2) == index(1, 2)
    assert index(1, 2) != index(1, 3)
    assert index(1, 2) != index(2, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HardConfig(draw="topk"), "cannot be unbiased"),
        (lambda: HardConfig(draw="dice"), "`draw` must be one of"),  # type: ignore[arg-type]
        (lambda: HardConfig(reweight="some"), "`reweight` must be one of"),  # type: ignore[arg-type]
        (lambda: HardConfig(rate=0.0), "`rate` must be in 0 .. 1"),
        (lambda: HardConfig(rate=1.5), "`rate` must be in 0 .. 1"),
        (lambda: HardConfig(low=0.0), "0 < low <= high <= 1"),
        (lambda: HardConfig(low=0.6), "0 < low <= high <= 1"),
        (lambda: HardConfig(high=1.1), "0 < low <= high <= 1"),
        (lambda: MiningConfig(policy="easy"), "policy must be one of"),  # type: ignore[arg-type]
        (lambda: MiningConfig(stop=1.0), "0 <= stop < 1"),
        (lambda: Miner(images=0), "`images` must be at least 1"),
        (lambda: Miner(images=1).choose(torch.ones(3), step=0), r"must have shape \[B, C\], got \[3\]"),
        (
            lambda: Miner(images=1).choose(torch.ones(3, 1), marched=2, step=0),
            "`marched` must be at least the 3 samples",
        ),
    ],
)
def test_invalid_config_or_arguments_raise(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()

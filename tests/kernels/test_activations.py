"""Activations: hand-computed values, gradients, the gradient beyond the cap, hidden samples, and errors."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from raymine import render
from raymine.errors import ConfigError
from raymine.kernels.activations import CAP, HIDDEN, MOST_SHIFT, NGP, Activation, Activations, Kind
from raymine.kernels.judge.op import CAP as JUDGE_CAP
from raymine.kernels.ngp_step.op import HIDDEN as NGP_STEP_HIDDEN

KINDS: tuple[Kind, ...] = get_args(Kind)
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (Activation("exp"), [math.exp(-2), 1.0, math.exp(3)]),
        (Activation("exp", shift=1.0), [math.exp(-3), math.exp(-1), math.exp(2)]),
        (Activation("exp", shift=1.0, cap=1.5), [math.exp(-3), math.exp(-1), math.exp(1.5)]),
        (Activation("softplus", shift=1.0), [math.log1p(math.exp(x - 1)) for x in (-2, 0, 3)]),
        (Activation("relu"), [0.0, 0.0, 3.0]),
        (Activation("relu", shift=-1.0), [0.0, 1.0, 4.0]),
        (Activation("sigmoid", shift=3.0), [1 / (1 + math.exp(5)), 1 / (1 + math.exp(3)), 0.5]),
    ],
    ids=str,
)
def test_activations_match_hand_computed_values(activation: Activation, expected: list[float]) -> None:
    assert activation(torch.tensor([-2.0, 0.0, 3.0])).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shift", [0.0, 0.7])
def test_activations_pass_gradcheck(kind: Kind, shift: float) -> None:
    """At points away from the kink of relu and below the cap."""
    raw = torch.tensor([-3.0, -0.2, 0.3, 1.1, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Activation(kind, shift), raw)
    assert torch.autograd.gradcheck(Activation("exp", shift, cap=5.0), raw)


def test_gradient_beyond_the_cap_equals_the_capped_value() -> None:
    raw = torch.tensor([CAP, CAP + 1, CAP + 2, 1e30], requires_grad=True)
    value = NGP.density(raw)
    assert value.tolist() == pytest.approx([math.exp(CAP - 1)] + [math.exp(CAP)] * 3)
    value.backward(torch.full_like(value, 2.0))
    assert raw.grad is not None
    assert torch.equal(raw.grad, 2 * value.detach())


def test_nan_stays_nan() -> None:
    for activation in (*(Activation(kind) for kind in KINDS), NGP.density):
        assert activation(torch.tensor(math.nan)).isnan()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shift", [-MOST_SHIFT, 0.0, 1.0, MOST_SHIFT])
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_pre_activation_gives_zero_for_every_kind(kind: Kind, shift: float, dtype: torch.dtype) -> None:
    raw = torch.full((17,), HIDDEN, dtype=dtype)
    for cap in (None, CAP) if kind == "exp" else (None,):
        value = Activation(kind, shift, cap)(raw)
        assert value.dtype == dtype
        assert (value == 0).all()


def test_ngp_activations_equal_their_formulas_bit_for_bit() -> None:
    raw = torch.randn(1000) * 10
    assert torch.equal(NGP.density(raw), torch.exp((raw - 1.0).clamp_max(15.0)))
    assert torch.equal(NGP.colour(raw), torch.sigmoid(raw))


def test_constants_have_one_definition() -> None:
    assert JUDGE_CAP is CAP
    assert NGP_STEP_HIDDEN is render.HIDDEN is HIDDEN


def test_activations_compare_and_hash_by_value() -> None:
    again = Activations(density=Activation("exp", shift=1.0, cap=CAP), colour=Activation("sigmoid"))
    assert again == NGP
    assert hash(again) == hash(NGP)
    assert Activation("relu") != Activation("relu", shift=1.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tanh",), "must be one of exp, softplus, relu, sigmoid; got 'tanh'"),
        (("relu", math.nan), r"`shift` of an activation must be in -1000 .. 1000, got nan"),
        (("exp", -1e4), r"`shift` of an activation must be in -1000 .. 1000, got -10000.0"),
        (("relu", 0.0, 3.0), "only the activation `exp` takes a `cap`; got 3.0 for `relu`"),
        (("exp", 0.0, math.inf), "`cap` of an activation must be finite, got inf. None is no limit"),
        (("exp", 0.0, math.nan), "`cap` of an activation must be finite, got nan"),
    ],
    ids=str,
)
def test_invalid_arguments_raise_config_error(arguments: tuple, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Activation(*arguments)

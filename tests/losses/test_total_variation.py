"""Total variation: the weight times what the field says, and an error where the field says nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from raymine.contracts import ParameterView
from raymine.errors import ConfigError
from raymine.losses import ColourLoss, TotalVariation, judged_loss


class _Rough(nn.Module):
    def density(self, positions: Tensor, time: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def variation(self, step: int | Tensor) -> Tensor:
        return torch.tensor(4.0) + step


def test_term_is_weight_times_variation_of_the_field() -> None:
    view = ParameterView({}, 2, field=_Rough())  # type: ignore[arg-type]
    assert float(TotalVariation(0.5)(view)) == 3.0


def test_field_without_neighbours_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match="Linear"):
        TotalVariation()(ParameterView({}, 0, field=nn.Linear(2, 2)))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="weight"):
        TotalVariation(0.0)


def test_closed_form_of_the_colour_loss_ignores_terms_over_parameters() -> None:
    found = judged_loss((ColourLoss("l2"), TotalVariation()))
    assert found is not None
    assert found.colour == ColourLoss("l2")

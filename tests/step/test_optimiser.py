"""The penalty on the levels of a table: its definition, dense and by row."""

from __future__ import annotations

import pytest
import torch

from raymine.errors import ConfigError
from raymine.step.optimiser import LevelPenalties, OptimiserConfig


def test_penalty_is_the_gradient_of_the_mean_square_of_each_level() -> None:
    levels, decay = (8, 24), 0.3
    table = torch.randn(32, 2, dtype=torch.float64, requires_grad=True)
    value = decay * sum(part.square().mean() for part in table.split(levels))
    (expected,) = torch.autograd.grad(value, table)
    grad = torch.randn(32, 2).double()
    grad[3] = 0.0
    grad[5, 1] = 0.0
    found = LevelPenalties.of(decay, levels, table).added(grad, table.detach())
    assert torch.allclose(found, torch.where(grad != 0, grad + expected, grad))
    assert not found[3].any()
    rows = torch.tensor([30, 2, 8, 7])
    some = LevelPenalties.of(decay, levels, table).added(grad[rows], table.detach()[rows], rows)
    assert torch.equal(some, found[rows])


def test_negative_level_decay_is_refused() -> None:
    with pytest.raises(ConfigError, match="level_decay >= 0"):
        OptimiserConfig(level_decay=-1.0)

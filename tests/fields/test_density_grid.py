"""The density network of proposals: contraction, gradients, groups, memory and configs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from raymine.contracts import Bounds, Memory
from raymine.errors import ConfigError
from raymine.fields import HashField, HashFieldConfig
from raymine.fields.density_grid import DensityGrid, DensityGridConfig
from raymine.kernels.hash_grid.op import GridSpec, encode
from raymine.kernels.ngp_step.op import Box, to_unit_cube

SMALL = DensityGridConfig(GridSpec(levels=3, features=2, log2_entries=8, base=4, finest=32), width=8)
CPU = torch.device("cpu")


@pytest.mark.parametrize("levels", [1, 3])
def test_density_is_that_of_a_hash_field_with_the_same_parameters(levels: int) -> None:
    bounds = Bounds(levels=levels)
    network = SMALL.build(bounds, 3, CPU)
    field = HashField(HashFieldConfig(SMALL.grid, width=8, geometry=1), bounds, seed=5)
    with torch.no_grad():
        field.table.copy_(network.table * 1e3)
        network.table.mul_(1e3)
        field.density_layers[0].copy_(network.hidden)
        field.density_layers[1].copy_(network.out)
    points = torch.randn(200, 3) * (0.5 if levels == 1 else 20.0)
    found = network.density(points)
    assert found.shape == (200,)
    assert torch.equal(found, field.density(points))


@pytest.mark.parametrize("n", [0, 1, 63])
def test_every_parameter_gets_a_finite_gradient(n: int) -> None:
    network = SMALL.build(Bounds(levels=3), 3, CPU)
    positions = (torch.rand(n, 3) * 4 - 2).requires_grad_()
    network.density(positions).sum().backward()
    for name, value in network.named_parameters():
        assert value.grad is not None, name
        assert bool(torch.isfinite(value.grad).all()), name
        assert bool(value.grad.any()) == (n > 0), name
    assert positions.grad is not None


def test_gradients_match_those_of_the_reference_in_double_precision() -> None:
    network = SMALL.build(Bounds(levels=3), 3, CPU)
    positions = torch.rand(40, 3) * 4 - 2
    network.density(positions).square().sum().backward()
    table, hidden, out = (each.detach().double().requires_grad_() for each in network.parameters())
    box = Box(network.low.double(), network.high.double(), True)
    cube = to_unit_cube(positions.double(), box)
    raw = (encode(cube, table, SMALL.grid) @ hidden).relu() @ out
    raw[:, 0].square().sum().backward()
    for own, wanted in zip(network.parameters(), (table, hidden, out), strict=True):
        assert torch.allclose(own.grad.double(), wanted.grad, rtol=1e-3, atol=1e-9)


def test_initial_parameters_are_a_function_of_the_seed() -> None:
    one, two, other = (DensityGrid(SMALL, Bounds(), seed) for seed in (1, 1, 2))
    for name, value in one.named_parameters():
        assert torch.equal(value, two.get_parameter(name)), name
        assert not torch.equal(value, other.get_parameter(name)), name


def test_groups_hold_the_sparse_table_and_the_dense_layers() -> None:
    network = SMALL.build(Bounds(), 0, CPU)
    table, layers = network.groups()
    assert (table.sparse, table.decay, list(table.parameters)) == (True, 0.0, ["table"])
    assert (layers.sparse, list(layers.parameters)) == (False, ["hidden", "out"])
    assert {**table.parameters, **layers.parameters} == dict(network.named_parameters())


def test_memory_grows_with_table_and_width() -> None:
    small = SMALL.memory(Bounds())
    assert small.fixed == 16 * SMALL.grid.total_entries * 2
    assert isinstance(small, Memory)
    assert replace(SMALL, width=64).memory(Bounds()).per_sample > small.per_sample


def test_width_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`width` must be in 4 \.\. 256, got 2"):
        DensityGridConfig(width=2)

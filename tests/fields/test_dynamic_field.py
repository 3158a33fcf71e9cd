"""The field that changes with time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from raymine.config import from_json, to_json
from raymine.contracts import Bounds, FadesLevels, FieldInput, KeepsFeatures
from raymine.errors import ConfigError
from raymine.fields.dynamic_field import DynamicField, DynamicFieldConfig
from raymine.fields.motion import MotionConfig, MotionEncoding
from raymine.kernels.hash_grid.op import GridSpec
from raymine.step.precision import TorchField, amp_problem

CPU = torch.device("cpu")
GRID = GridSpec(levels=4, features=2, log2_entries=9, base=4, finest=32)
ENCODINGS: tuple[MotionEncoding, ...] = ("frequencies", "grids")


def config(encoding: MotionEncoding = "frequencies") -> DynamicFieldConfig:
    motion = MotionConfig(encoding, width=16, depth=2, features=4, grid=replace(GRID, levels=2))
    return DynamicFieldConfig(GRID, width=16, geometry=8, motion=motion)


def moving(encoding: MotionEncoding = "frequencies", levels: int = 1) -> DynamicField:
    """A field with something in it that moves: parameters of a fresh one are close to 0."""
    field = config(encoding).build(Bounds((-1.0, -1.0, -1.0), (1.0, 1.0, 1.0), levels), 3, CPU)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        field.table.copy_(torch.randn(field.table.shape, generator=generator))
        field.motion.layers[-1].mul_(30)
    return field


def query(n: int = 40) -> FieldInput:
    generator = torch.Generator().manual_seed(2)
    directions = torch.nn.functional.normalize(torch.randn(n, 3, generator=generator), dim=1)
    return FieldInput(torch.rand(n, 3, generator=generator) * 1.6 - 0.8, directions, torch.rand(n, generator=generator))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_gradients_of_all_parameters_match_finite_differences(encoding: MotionEncoding) -> None:
    field, asked = moving(encoding).double(), query()
    assert asked.time is not None
    asked = FieldInput(asked.positions.double(), asked.directions.double(), asked.time.double())

    def loss() -> torch.Tensor:
        output = field(asked)
        return output.colour.square().sum() + output.density.sin().sum()

    loss().backward()
    generator, step = torch.Generator().manual_seed(5), 1e-6
    for name, parameter in field.named_parameters():
        assert parameter.grad is not None, name
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign * step)
                values.append(float(loss()))
                parameter.add_(direction, alpha=-sign * step)
        expected = (values[0] - values[1]) / (2 * step)
        assert float((parameter.grad * direction).sum()) == pytest.approx(expected, rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("levels", [1, 3])
def test_time_changes_density_and_colour(encoding: MotionEncoding, levels: int) -> None:
    field, asked = moving(encoding, levels), query()
    assert asked.time is not None
    now, later = field(asked), field(replace(asked, time=1 - asked.time))
    assert float((now.density - later.density).detach().abs().mean()) > 1e-2
    assert float((now.colour - later.colour).detach().abs().mean()) > 1e-3
    assert torch.equal(now.density, field(asked).density)


def test_fresh_field_is_static_and_a_function_of_the_seed() -> None:
    bounds, asked = Bounds(), query()
    field, again, other = (config().build(bounds, seed, CPU) for seed in (1, 1, 2))
    for name, value in field.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
        assert not torch.equal(value, other.state_dict()[name]), name
    assert asked.time is not None
    difference = field.density(asked.positions, asked.time) - field.density(asked.positions, 1 - asked.time)
    assert float(difference.detach().abs().max()) < 0.05
    assert not torch.equal(field.density_layers[1][:, :3], field.motion.layers[0][:16, :3])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_known_features_change_neither_outputs_nor_gradients(encoding: MotionEncoding) -> None:
    field, asked = moving(encoding), query()
    assert isinstance(field, KeepsFeatures)
    raw, features = field.density_and_features(asked.positions, asked.time)
    assert torch.equal(raw, field.density(asked.positions, asked.time))
    found = []
    for known in (None, features):
        field.zero_grad()
        output = field(replace(asked, features=known))
        (output.colour.sum() + output.density.square().sum()).backward()
        found.append([output.density.detach(), *(p.grad.clone() for p in field.parameters() if p.grad is not None)])
        with torch.no_grad():
            assert torch.allclose(field(replace(asked, features=known)).colour, output.colour)
    assert len(found[0]) == 1 + len(list(field.parameters()))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_positions_get_gradients_through_motion() -> None:
    field, asked = moving().double(), query()
    assert asked.time is not None
    positions, time = asked.positions.double().requires_grad_(), asked.time.double()
    field.density(positions, time).sum().backward()
    assert positions.grad is not None
    step = 1e-7
    ahead = positions.detach() + torch.tensor([step, 0.0, 0.0])
    behind = positions.detach() - torch.tensor([step, 0.0, 0.0])
    expected = (field.density(ahead, time) - field.density(behind, time)) / (2 * step)
    assert torch.allclose(positions.grad[:, 0], expected.detach(), rtol=1e-3, atol=1e-4)


def test_fading_closes_levels_of_the_grid_and_keeps_motion() -> None:
    field, asked = moving(), query()
    assert isinstance(field, FadesLevels)
    whole = field(asked).density
    field.fade_levels(0.0)
    none = field(asked).density
    with torch.no_grad():
        field.table.zero_()
    assert torch.allclose(field(asked).density, none), "no level is open, so the table does not matter"
    assert not torch.allclose(whole, none)
    assert asked.time is not None
    assert not torch.allclose(field.density(asked.positions, 1 - asked.time), none)


def test_half_precision_rounds_networks_and_leaves_float32_outputs() -> None:
    problem = amp_problem("bf16", CPU)
    if problem:
        pytest.skip(problem)
    field, asked = moving(), query()
    rounded, exact = TorchField(field, torch.bfloat16, 0).forward(asked), field(asked)
    assert rounded.density.dtype is torch.float32
    assert not torch.equal(rounded.density, exact.density)
    assert float((rounded.density - exact.density).detach().abs().mean()) < 0.1 * float(exact.density.detach().std())


def test_missing_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="this field changes with time, and `time` is missing"):
        moving().density(query().positions)


def test_config_survives_json_and_refuses_nonsense() -> None:
    for encoding in ENCODINGS:
        assert from_json(DynamicFieldConfig, to_json(config(encoding))) == config(encoding)
    assert DynamicFieldConfig.dynamic
    memory = config().memory(Bounds()), config("grids").memory(Bounds())
    assert 0 < memory[0].fixed < memory[1].fixed
    for changes, words in (({"width": 4}, "8 .. 512"), ({"geometry": 0}, "1 .. 64"), ({"colour_layers": 9}, "1 .. 4")):
        with pytest.raises(ConfigError, match=words):
            DynamicFieldConfig(**changes)

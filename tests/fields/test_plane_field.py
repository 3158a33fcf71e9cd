"""The field of planes: static and with time, its gradients, its groups, its variation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from raymine.contracts import Bounds, FieldInput, HasVariation
from raymine.errors import ConfigError
from raymine.fields.plane_field import PlaneField, PlaneFieldConfig
from raymine.kernels.threads import using_threads

SMALL = PlaneFieldConfig(resolutions=(4, 8), features=4, width=16)
MOVING = replace(SMALL, times=5)
VM = replace(SMALL, product="vm")
BOX = Bounds(low=(-1.0, -1.0, -1.0), high=(1.0, 1.0, 1.0))


def queries(n: int = 20, moving: bool = False) -> FieldInput:
    directions = torch.nn.functional.normalize(torch.randn(n, 3), dim=-1)
    return FieldInput(torch.rand(n, 3) * 2 - 1, directions, torch.rand(n) if moving else None)


@pytest.mark.parametrize("config", [SMALL, MOVING, VM], ids=["planes", "times", "vm"])
def test_density_is_that_of_forward_and_every_parameter_gets_a_gradient(config: PlaneFieldConfig) -> None:
    field, query = PlaneField(config, BOX), queries(200, config.dynamic)
    out = field.forward(query)
    assert out.colour.shape == (200, 3)
    assert torch.allclose(field.density(query.positions, query.time), out.density)
    density, kept = field.density_and_features(query.positions, query.time)
    assert torch.equal(density, out.density)
    with torch.no_grad():
        again = field.forward(replace(query, features=kept))
    assert torch.equal(again.colour, out.colour)
    (out.colour.sum() + out.density.sum()).backward()
    assert all(float(value.grad.abs().sum()) > 0 for value in field.parameters() if value.grad is not None)
    assert all(value.grad is not None for value in field.parameters())
    named = [name for group in field.groups() for name in group.parameters]
    assert sorted(named) == sorted(name for name, _ in field.named_parameters())


def test_field_is_differentiable_in_positions_and_in_unbounded_space() -> None:
    field = PlaneField(SMALL, replace(BOX, levels=3))
    positions = (torch.rand(20, 3) * 40 - 20).requires_grad_()
    field.density(positions).sum().backward()
    assert positions.grad is not None
    assert positions.grad.isfinite().all()
    assert float(positions.grad.abs().max()) > 0


def test_moving_field_follows_time_once_its_time_planes_do() -> None:
    field, query = PlaneField(MOVING, BOX), queries()
    early, late = torch.zeros(20), torch.ones(20)
    assert torch.equal(field.density(query.positions, early), field.density(query.positions, late))
    with torch.no_grad():
        field.second[0][:, :, -1] = 3.0
    assert not torch.allclose(field.density(query.positions, early), field.density(query.positions, late))
    with pytest.raises(ConfigError, match="time"):
        field.density(query.positions)


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    query, results = queries(9000), []
    for threads in (1, 2):
        field = PlaneField(SMALL, BOX)
        with using_threads(threads):
            encoded = field.encode(query.positions)
            (encoded.sum() + field.variation(0)).backward()
        results.append((encoded.detach(), *(value.grad for value in field.planes)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_variation_is_the_mean_squared_difference_of_neighbours() -> None:
    field = PlaneField(replace(MOVING, resolutions=(3,)), BOX)
    assert isinstance(field, HasVariation)
    with torch.no_grad():
        field.planes[0].zero_()
        field.planes[0][0, 1, 1] = 1.0  # the centre of one of three planes: on each axis 2 of 3 * 6 differences
        field.second[0].copy_(torch.arange(5.0)[:, None].expand(3, 3, 5, 4))
    assert field.variation(0).item() == pytest.approx(4 / 18)
    with torch.no_grad():
        field.second[0][:, :, 2] += 1.0  # second differences 1, -2, 1 at every vertex
    assert field.variation(0).item() == pytest.approx(4 / 18 + (1 + 4 + 1) / 3)


def test_fading_hides_the_finest_planes() -> None:
    field, query = PlaneField(SMALL, BOX), queries()
    field.fade_levels(0.5)
    assert field.encode(query.positions)[:, 4:].abs().max().item() == 0.0
    field.fade_levels(1.0)
    assert field.encode(query.positions)[:, 4:].abs().max().item() > 0.0


def test_memory_counts_every_plane_four_times() -> None:
    field = PlaneField(MOVING, BOX)
    numbers = sum(value.numel() for value in (*field.planes, *field.second))
    assert MOVING.memory(BOX).fixed == 16 * numbers
    assert VM.memory(BOX).fixed == 16 * sum(v.numel() for f in [PlaneField(VM, BOX)] for v in (*f.planes, *f.second))


@pytest.mark.parametrize(
    "changes",
    [{"product": "vm", "times": 4}, {"features": 5}, {"resolutions": ()}, {"resolutions": (1,)}, {"width": 2}],
)
def test_wrong_configs_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        replace(SMALL, **changes)  # type: ignore[arg-type]

"""Fading of levels from coarse to fine: weights, the hash-grid field and the MLP."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch

from raymine.contracts import Bounds, FadesLevels, FieldInput, Rays
from raymine.errors import ConfigError
from raymine.fields import HashField, HashFieldConfig
from raymine.fields.dynamic_field import DynamicField, DynamicFieldConfig
from raymine.fields.levels import level_weights
from raymine.fields.mlp_field import MlpField, MlpFieldConfig
from raymine.fields.plane_field import PlaneField, PlaneFieldConfig
from raymine.kernels.hash_grid.op import GridSpec
from raymine.kernels.packed import Samples

SPEC = GridSpec(levels=4, features=2, log2_entries=8, base=4, finest=32)


def hash_field() -> HashField:
    """A field whose table is as large as after training."""
    field = HashField(HashFieldConfig(SPEC, width=16), Bounds())
    with torch.no_grad():
        field.table.uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    return field


def query(n: int = 50) -> FieldInput:
    random = torch.Generator().manual_seed(2)
    directions = torch.nn.functional.normalize(torch.randn(n, 3, generator=random), dim=1)
    return FieldInput(torch.rand(n, 3, generator=random) * 2 - 1, directions)


def test_weights_by_hand() -> None:
    assert level_weights(4, 1.0) is None
    found = level_weights(4, 0.625)  # two and a half levels
    assert found is not None
    assert torch.allclose(found, torch.tensor([1.0, 1.0, 0.5, 0.0]))
    quarter = level_weights(1, 0.25)
    assert quarter is not None
    assert float(quarter) == pytest.approx((1 - math.sqrt(0.5)) / 2)
    assert torch.equal(level_weights(3, 0.0), torch.zeros(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_share_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="share"):
        level_weights(4, share)


def test_faded_hash_field_is_the_field_of_a_scaled_table() -> None:
    field, scaled = hash_field(), hash_field()
    assert isinstance(field, FadesLevels)
    field.fade_levels(0.625)
    with torch.no_grad():
        for level, weight in enumerate((1.0, 1.0, 0.5, 0.0)):
            first = int(SPEC.offsets[level])
            scaled.table[first : first + int(SPEC.entries[level])] *= weight
    found, expected = field.forward(query()), scaled.forward(query())
    assert torch.allclose(found.colour, expected.colour, atol=1e-5)
    assert torch.allclose(found.density, expected.density, atol=1e-5)
    assert torch.allclose(field.density(query().positions), expected.density, atol=1e-5)


def test_faded_hash_field_has_the_same_kernels_and_gradients() -> None:
    """Rays by `infer` and gradients by `pull_back` against `forward` and autograd."""
    field, other = hash_field(), hash_field()
    for each in (field, other):
        each.fade_levels(0.625)
    points = query()
    n = len(points.positions)
    rays = Rays(points.positions - 0.5 * points.directions, points.directions, torch.zeros(n), torch.ones(n))
    index = torch.arange(n)
    samples = Samples(torch.full((n,), 0.4), torch.full((n,), 0.6), index, index, torch.ones_like(index))
    seen, _ = field.infer(rays, samples, 0.0, 0.0, colour=True, keep=False)
    plain = field.forward(points)
    assert torch.allclose(seen.colour, plain.colour, atol=1e-4)
    assert torch.allclose(seen.density, plain.density, atol=1e-4)
    weights = torch.randn(n, 4, generator=torch.Generator().manual_seed(3))
    field.pull_back(points, weights[:, :3].contiguous(), weights[:, 3].contiguous())
    output = other.forward(points)
    torch.autograd.backward((output.colour, output.density), (weights[:, :3], weights[:, 3]))
    for (name, own), expected in zip(field.named_parameters(), other.parameters(), strict=True):
        assert own.grad is not None
        assert expected.grad is not None
        dense = own.grad.to_dense() if own.grad.is_sparse else own.grad
        assert torch.allclose(dense, expected.grad, rtol=1e-3, atol=1e-4), name


def test_open_levels_leave_the_field_as_it_was() -> None:
    field = hash_field()
    before = field.forward(query())
    field.fade_levels(0.3)
    faded = copy.deepcopy(field).forward(query())
    assert not torch.allclose(before.density, faded.density, atol=1e-3)
    field.fade_levels(1.0)
    assert torch.equal(field.forward(query()).density, before.density)
    assert "_fading" not in field.state_dict()


FADING: dict[str, Callable[[], FadesLevels]] = {
    "hash": hash_field,
    "mlp": lambda: MlpField(MlpFieldConfig(depth=2, width=32, skip=0), Bounds()),
    "planes": lambda: PlaneField(PlaneFieldConfig(resolutions=(4, 8), features=4, width=16), Bounds()),
    "dynamic": lambda: DynamicField(DynamicFieldConfig(SPEC, width=16), Bounds()),
}


@pytest.mark.parametrize("build", FADING.values(), ids=FADING)
def test_weights_of_levels_stay_where_they_are(build: Callable[[], FadesLevels]) -> None:
    """A CUDA graph reads them in the memory where they were when it was captured."""
    field, places, sums = build(), set(), []
    for share in (0.25, 0.75, 1.0, 0.5):
        field.fade_levels(share)
        weights = field._fading  # type: ignore[attr-defined]
        places.add(weights.data_ptr())
        sums.append(float(weights.mean()))
    assert len(places) == 1
    assert sums[0] < sums[3] < sums[1] < sums[2] == 1.0


def test_mlp_fades_its_frequencies() -> None:
    """With all frequencies closed, points that differ by less than a wavelength give almost the same density."""
    field = MlpField(MlpFieldConfig(depth=2, width=32, skip=0), Bounds())
    assert isinstance(field, FadesLevels)
    points = query().positions
    near = points + 1e-3
    spread = (field.density(points) - field.density(near)).abs().max()
    field.fade_levels(0.0)
    assert (field.density(points) - field.density(near)).abs().max() < 0.1 * spread

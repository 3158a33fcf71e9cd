"""The hash-grid field, and the harmonics, unit-cube mapping and activations that it uses."""

from __future__ import annotations

import pytest
import torch

from raymine.contracts import Bounds, FieldInput
from raymine.errors import ConfigError
from raymine.fields import HashField, HashFieldConfig
from raymine.kernels.activations import NGP
from raymine.kernels.hash_grid.op import GridSpec
from raymine.kernels.ngp_step.inputs import harmonics
from raymine.kernels.ngp_step.op import Box, to_unit_cube
from raymine.toolkit.contraction import from_unit_cube
from support.device import requires_gpu

SMALL = HashFieldConfig(grid=GridSpec(levels=3, features=2, log2_entries=8, base=4, finest=32), width=16)


def directions(n: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(n, 3, dtype=torch.float64), dim=-1)


def test_harmonics_are_orthonormal_over_the_sphere() -> None:
    # A quadrature that is exact for polynomials of this degree: Gauss-Legendre in z, equal angles around z.
    import numpy as np

    z, wz = np.polynomial.legendre.leggauss(12)
    phi = np.arange(24) * 2 * np.pi / 24
    r = np.sqrt(1 - z**2)
    d = np.stack((np.outer(r, np.cos(phi)), np.outer(r, np.sin(phi)), np.outer(z, np.ones(24))), -1).reshape(-1, 3)
    w = np.outer(wz, np.full(24, 2 * np.pi / 24)).reshape(-1)
    y = harmonics(torch.from_numpy(d)).numpy()
    assert np.allclose((y * w[:, None]).T @ y, np.eye(16), atol=1e-12)


@pytest.mark.parametrize("unbounded", [False, True])
def test_unit_cube_mapping_round_trips(unbounded: bool) -> None:
    low, high = torch.tensor([-1.0, -2.0, 0.0]).double(), torch.tensor([1.0, 2.0, 3.0]).double()
    points = low + torch.rand(200, 3, dtype=torch.float64) * (high - low)
    if unbounded:
        points = points * 20
    cube = to_unit_cube(points, Box(low, high, unbounded))
    assert float(cube.min()) >= 0
    assert float(cube.max()) <= 1
    back = from_unit_cube(cube, low, high) if unbounded else low + cube * (high - low)
    assert torch.allclose(back, points, rtol=1e-6, atol=1e-9)


def test_density_agrees_with_forward() -> None:
    field = HashField(SMALL, Bounds(), seed=3)
    query = FieldInput(torch.rand(50, 3), directions(50).float())
    out = field(query)
    assert out.colour.shape == (50, 3)
    assert torch.equal(out.density, field.density(query.positions))


def test_every_parameter_gets_a_gradient() -> None:
    field = HashField(SMALL, Bounds(levels=3), seed=3)
    out = field(FieldInput(torch.randn(500, 3) * 4, directions(500).float()))
    (out.colour.square().sum() + out.density.square().sum()).backward()
    for name, parameter in field.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().sum()) > 0, name


def test_parameters_are_a_function_of_the_seed() -> None:
    a, b, c = (HashField(SMALL, Bounds(), seed=s) for s in (1, 1, 2))
    for p, q, r in zip(a.parameters(), b.parameters(), c.parameters(), strict=True):
        assert torch.equal(p, q)
        assert not torch.equal(p, r)
    assert not torch.equal(a.colour_layers[1][:3, :3], a.colour_layers[0][:3, :3])


def test_density_activation_is_capped_but_keeps_its_gradient() -> None:
    raw = torch.tensor([1.0, 100.0], requires_grad=True)
    density = NGP.density(raw)
    assert density[0].item() == pytest.approx(1.0)
    assert torch.isfinite(density).all()
    (grad,) = torch.autograd.grad(density.sum(), raw)
    assert grad.tolist() == pytest.approx(density.tolist())
    assert NGP.colour(torch.zeros(1)).item() == 0.5


def test_config_rejects_width_out_of_range() -> None:
    with pytest.raises(ConfigError, match=r"`width` must be in 8 \.\. 256, got 2"):
        HashFieldConfig(width=2)


def test_reusing_density_features_gives_the_same_density_and_gradients() -> None:
    field = HashField(SMALL, Bounds(), seed=3)
    points, ways = torch.rand(50, 3), directions(50).float()
    density, features = field.density_and_features(points)
    grads = []
    for known in (None, features):
        out = field(FieldInput(points, ways, features=known))
        grads.append(torch.autograd.grad(out.colour.sum() + out.density.sum(), list(field.parameters())))
        assert torch.equal(out.density, density)
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ConfigError, match=r"`known` must have shape \[50, 6\], got \[49, 6\]"):
        field(FieldInput(points, ways, features=features[:49]))


@requires_gpu
def test_initial_values_are_the_same_on_every_device() -> None:
    here, there = (HashField(SMALL, Bounds(), seed=3, device=device).state_dict() for device in ("cpu", "cuda"))
    assert all(torch.equal(value, there[name].cpu()) for name, value in here.items())

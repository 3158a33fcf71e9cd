"""Spherical harmonics: kernels against the reference, which the tests of tiny-cuda-nn's encodings check by formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.harmonics import reference
from raymine.kernels.harmonics.op import MOST_DEGREE, harmonics
from support.device import TRITON_DEVICE

pytestmark = pytest.mark.usefixtures("poisoned")

KERNELS: list[dispatch.Backend] = ["cpu", "gpu"]


def directions(n: int, backend: dispatch.Backend = "gpu") -> Tensor:
    return torch.nn.functional.normalize(torch.randn(n, 3), dim=-1).to("cpu" if backend == "cpu" else TRITON_DEVICE)


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("degree", range(1, MOST_DEGREE + 1))
@pytest.mark.parametrize("n", [0, 1, 257, 600])
def test_kernels_match_reference(degree: int, n: int, backend: dispatch.Backend) -> None:
    at = directions(n, backend)
    with dispatch.force(backend):
        got = harmonics(at, degree)
    expected = reference.harmonics(at.double(), degree)
    assert got.shape == (n, degree**2)
    assert got.dtype == torch.float32
    assert torch.allclose(got.double(), expected, atol=2e-6)


@pytest.mark.parametrize("backend", KERNELS)
def test_non_contiguous_and_nan_inputs_match_reference(backend: dispatch.Backend) -> None:
    at = directions(40, backend).T.contiguous().T
    at[3, 1] = torch.nan
    with dispatch.force(backend):
        got = harmonics(at, 4)
    assert got[3, 1:].isnan().any()
    rest = torch.arange(40, device=at.device) != 3
    assert torch.allclose(got[rest], reference.harmonics(at, 4)[rest], atol=2e-6)


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_gradients_equal_those_of_the_reference(kind: torch.dtype, backend: dispatch.Backend) -> None:
    at = directions(30, backend).to(kind)
    grads = []
    for function in (harmonics, reference.harmonics):
        leaf = at.clone().requires_grad_()
        with dispatch.force(backend):
            out = function(leaf, 5)
        grads += torch.autograd.grad(out.square().sum() + out[:, 3].sum(), leaf)
    assert torch.equal(*grads)
    with torch.no_grad(), dispatch.force(backend):
        assert torch.allclose(harmonics(at.requires_grad_(), 5), reference.harmonics(at, 5), atol=2e-6)


def test_invalid_arguments_raise_config_error() -> None:
    with pytest.raises(ConfigError, match=r"shape \[n, 3\], got torch.float32 of shape \[4, 2\]"):
        harmonics(torch.zeros(4, 2), 4)
    for degree in (0, MOST_DEGREE + 1):
        with pytest.raises(ConfigError, match=f"1 .. {MOST_DEGREE}, got {degree}"):
            harmonics(torch.zeros(4, 3), degree)

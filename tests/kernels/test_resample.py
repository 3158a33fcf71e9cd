"""The op `resample`: a ray by hand, Triton against the reference, and the CDFs that carry no information."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.resample.op import MOST_EDGES, resample
from support.device import TRITON_DEVICE

pytestmark = pytest.mark.usefixtures("poisoned")


def rays(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Ascending edges and CDFs [*shape] that rise by at least 1e-2 between edges, and offsets."""
    steps = torch.rand(2, *shape, dtype=dtype) + 1e-2
    edges, cdfs = steps.cumsum(-1)
    return edges.to(TRITON_DEVICE), cdfs.to(TRITON_DEVICE), torch.rand(shape[:-1], dtype=dtype).to(TRITON_DEVICE)


def run(backend: dispatch.Backend, *args: Tensor, n: int) -> tuple[Tensor, Tensor]:
    if backend == "gpu":
        pytest.importorskip("triton")
    with dispatch.force(backend):
        return resample(*args, n)


@pytest.mark.parametrize("backend", ["reference", "gpu"])
def test_resample_matches_hand_computed_ray(backend: dispatch.Backend) -> None:
    """Three quarters of the mass lie in the second half, so three of four samples do."""
    edges = torch.tensor([[0.0, 1.0, 2.0]], device=TRITON_DEVICE)
    cdfs = torch.tensor([[0.0, 0.25, 1.0]], device=TRITON_DEVICE)
    new, samples = run(backend, edges, cdfs, torch.tensor([0.5], device=TRITON_DEVICE), n=4)
    expected = [0.5, 1 + 1 / 6, 1.5, 1 + 5 / 6]
    assert samples[0].tolist() == pytest.approx(expected)
    between = [(a + b) / 2 for a, b in itertools.pairwise(expected)]
    assert new[0].tolist() == pytest.approx([1 / 6, *between, 2.0])


@pytest.mark.parametrize("shape", [(0, 5), (1, 2), (7, 9), (2, 3, 33), (4, 1)])
@pytest.mark.parametrize("n", [1, 2, 3, 16, 40])
def test_gpu_matches_reference(shape: tuple[int, ...], n: int) -> None:
    args = rays(*shape)
    for got, expected in zip(run("gpu", *args, n=n), run("reference", *args, n=n), strict=True):
        assert got.shape == expected.shape
        assert torch.allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_gpu_takes_non_contiguous_input() -> None:
    edges, cdfs, offset = rays(6, 8)
    args = edges.T.contiguous().T, cdfs.T.contiguous().T, offset
    for got, expected in zip(run("gpu", *args, n=5), run("reference", edges, cdfs, offset, n=5), strict=True):
        assert torch.allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["reference", "gpu"])
@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_cdf_without_information_gives_even_samples(backend: dispatch.Backend, value: float) -> None:
    edges, cdfs, _ = rays(3, 5)
    edges[:] = torch.linspace(0, 4, 5)
    cdfs[1] = value
    _, samples = run(backend, edges, cdfs, torch.full((3,), 0.5, device=TRITON_DEVICE), n=4)
    assert samples[1].tolist() == pytest.approx([0.5, 1.5, 2.5, 3.5])


@pytest.mark.parametrize("backend", ["reference", "gpu"])
def test_samples_ascend_within_their_ray(backend: dispatch.Backend) -> None:
    edges, cdfs, offset = rays(20, 30)
    cdfs[:, 10:25] = cdfs[:, 10:11]  # a piece without mass
    new, samples = run(backend, edges, cdfs, offset, n=50)
    assert (samples.diff(dim=-1) >= 0).all()
    assert (new.diff(dim=-1) >= 0).all()
    assert (new >= edges[:, :1]).all()
    assert (new <= edges[:, -1:]).all()


def test_other_dtypes_and_long_rays_go_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the kernel was asked")

    monkeypatch.setattr(dispatch, "kernels", refuse)
    assert run("gpu", *rays(2, 4, dtype=torch.float64), n=3)[0].dtype is torch.float64
    assert run("gpu", *rays(1, MOST_EDGES + 1), n=3)[0].shape == (1, 4)


def test_wrong_shapes_are_refused() -> None:
    edges, cdfs, offset = rays(3, 5)
    with pytest.raises(ConfigError, match="cdfs"):
        resample(edges, cdfs[:, :4], offset, 4)
    with pytest.raises(ConfigError, match="offset"):
        resample(edges, cdfs, offset[:2], 4)
    with pytest.raises(ConfigError, match="`n`"):
        resample(edges, cdfs, offset, 0)

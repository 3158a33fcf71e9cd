"""Compositing: a ray by hand, gradcheck of the reference, and Numba and Triton against it, with every gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.composite import reference
from raymine.kernels.composite.op import composite, visible
from raymine.kernels.packed import Samples, pack_counts
from support.device import TRITON_DEVICE

pytestmark = pytest.mark.usefixtures("poisoned")


def ragged(rays: int, dtype: torch.dtype = torch.float32, most: int = 30) -> tuple[Tensor, Tensor, Samples, Tensor]:
    """Random packed samples; about a third of the rays have none."""
    count = torch.randint(0, most, (rays,))
    count[torch.rand(rays) < 0.3] = 0
    n = int(count.sum())
    t_start = torch.rand(n, dtype=dtype) * 3
    samples = Samples.from_pack(t_start, t_start + torch.rand(n, dtype=dtype) * 0.1, pack_counts(count))
    return torch.rand(n, dtype=dtype) * 40, torch.rand(n, 3, dtype=dtype), samples, torch.rand(rays, 3, dtype=dtype)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_composite_matches_hand_computed_ray(backend: dispatch.Backend) -> None:
    """Two samples of opacity 1/2 over white: weights 1/2 and 1/4, a quarter of the background."""
    density = torch.full((2,), math.log(2.0))
    colour = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    pack = pack_counts(torch.tensor([2]))
    samples = Samples.from_pack(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0]), pack)
    with dispatch.force(backend):
        out = composite(density, colour, samples, torch.ones(1, 3))
    assert out.weights.tolist() == pytest.approx([0.5, 0.25])
    assert out.colour[0].tolist() == pytest.approx([0.75, 0.5, 0.25])
    assert out.opacity.item() == pytest.approx(0.75)
    assert out.depth.item() == pytest.approx(0.5 * 1.5 + 0.25 * 2.5)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_samples_below_the_stop_transmittance_get_no_weight_or_gradient(backend: dispatch.Backend) -> None:
    """Opacity 0.9 each: the transmittance before the third sample is 0.01, below a stop of 0.05."""
    density = torch.full((3,), -math.log(0.1)).requires_grad_()
    samples = Samples.from_pack(torch.arange(3.0), torch.arange(1.0, 4.0), pack_counts(torch.tensor([3])))
    with dispatch.force(backend):
        out = composite(density, torch.ones(3, 3), samples, torch.zeros(1, 3), stop=0.05)
        (grad,) = torch.autograd.grad(out.opacity.sum(), density)
        keep = visible(density, samples, stop=0.05)
    assert out.weights.tolist() == pytest.approx([0.9, 0.09, 0.0], abs=1e-6)
    assert grad[2].item() == 0.0
    assert grad[0].item() == pytest.approx(0.1 - 0.09, abs=1e-6)
    assert keep.tolist() == [True, True, False]


def test_reference_passes_gradcheck() -> None:
    density, colour, samples, background = ragged(5, torch.float64)
    density = density * 0.05

    def run(d: Tensor, c: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return reference.composite(d, c, samples.t_start, samples.t_end, *samples.pack, b, 1e-4)

    leaves = [x.clone().requires_grad_() for x in (density, colour, background)]
    assert torch.autograd.gradcheck(run, leaves)


@pytest.mark.parametrize("rays", [0, 1, 63, 1000])
@pytest.mark.parametrize("stop", [1e-4, 1e-1])
def test_cpu_matches_reference_outputs_and_gradients(rays: int, stop: float) -> None:
    density, colour, samples, background = ragged(rays)
    leaves = [x.clone().requires_grad_() for x in (density, colour, background)]
    grads = [torch.randn(rays, 3), torch.randn(rays), torch.randn(rays), torch.randn(len(density))]
    results = {}
    for backend in ("cpu", "reference"):
        with dispatch.force(backend):  # type: ignore[arg-type]
            out = composite(leaves[0], leaves[1], samples, leaves[2], stop)
            results[backend] = (*(x.detach() for x in out), *torch.autograd.grad(out, leaves, grads))
    names = ("colour", "opacity", "depth", "weights", "d density", "d colour", "d background")
    for name, got, expected in zip(names, results["cpu"], results["reference"], strict=True):
        assert torch.allclose(got, expected, rtol=1e-4, atol=2e-6), name


@pytest.mark.parametrize("rays", [0, 1, 63, 1000])
def test_visible_on_cpu_matches_reference(rays: int) -> None:
    density, _, samples, _ = ragged(rays)
    with dispatch.force("cpu"):
        got = visible(density, samples, 1e-2, 0.3)
    with dispatch.force("reference"):
        expected = visible(density, samples, 1e-2, 0.3)
    assert int((got != expected).sum()) <= 1


@pytest.mark.parametrize("rays", [0, 1, 40])
@pytest.mark.parametrize("stop", [1e-4, 1e-1])
def test_gpu_matches_reference_outputs_and_gradients(rays: int, stop: float) -> None:
    pytest.importorskip("triton")
    density, colour, samples, background = ragged(rays, most=90)
    density, colour, background = (x.to(TRITON_DEVICE) for x in (density * 0.2, colour, background))
    samples = samples.to(TRITON_DEVICE)
    leaves = [x.clone().requires_grad_() for x in (density, colour, background)]
    shapes = ((rays, 3), (rays,), (rays,), (len(density),))
    grads = [torch.randn(shape, device=TRITON_DEVICE) for shape in shapes]
    results = {}
    for backend in ("gpu", "reference"):
        with dispatch.force(backend):  # type: ignore[arg-type]
            out = composite(leaves[0], leaves[1], samples, leaves[2], stop)
            keep = visible(density, samples, stop, 0.05)
            results[backend] = (*(x.detach() for x in out), *torch.autograd.grad(out, leaves, grads))
            results[backend + " keep"] = (keep,)
    names = ("colour", "opacity", "depth", "weights", "d density", "d colour", "d background")
    for name, got, expected in zip(names, results["gpu"], results["reference"], strict=True):
        assert torch.allclose(got, expected, rtol=1e-4, atol=5e-6), name
    assert int((results["gpu keep"][0] != results["reference keep"][0]).sum()) <= 1


def test_rays_without_samples_show_the_background() -> None:
    empty = torch.zeros(0)
    samples = Samples.from_pack(empty, empty, pack_counts(torch.zeros(2, dtype=torch.int64)))
    background = torch.rand(2, 3)
    out = composite(empty, torch.zeros(0, 3), samples, background)
    assert torch.equal(out.colour, background)
    assert out.opacity.tolist() == [0.0, 0.0]


def test_wrong_background_shape_raises() -> None:
    density, colour, samples, background = ragged(4)
    with pytest.raises(ConfigError, match=r"`background` must have shape \[4, 3\], got \[3, 3\]"):
        composite(density, colour, samples, background[:3])


@pytest.mark.parametrize("used", range(4))
def test_gradient_through_a_single_output_matches_reference(used: int) -> None:
    density, colour, samples, background = ragged(40)
    leaves = [x.clone().requires_grad_() for x in (density, colour, background)]
    results = []
    for backend in ("cpu", "reference"):
        with dispatch.force(backend):  # type: ignore[arg-type]
            out = composite(leaves[0], leaves[1], samples, leaves[2])[used]
            loss = (out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum()
            results.append(torch.autograd.grad(loss, leaves, allow_unused=True))
    for got, expected in zip(*results, strict=True):
        assert torch.allclose(got, torch.zeros_like(got) if expected is None else expected, rtol=1e-4, atol=2e-6)

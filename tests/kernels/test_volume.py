"""The op `volume`: a ray by hand, gradcheck of the reference, and Triton against it, with every gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.packed import Pack, pack_counts
from raymine.kernels.volume.op import Volume, volume
from support.device import TRITON_DEVICE

pytestmark = pytest.mark.usefixtures("poisoned")


def ragged(rays: int, dtype: torch.dtype = torch.float32, most: int = 90) -> tuple[list[Tensor], Pack]:
    """density, colour, t_start, t_end and background of random packed samples; a third of the rays have none."""
    count = torch.randint(0, most, (rays,))
    count[torch.rand(rays) < 0.3] = 0
    n = int(count.sum())
    t_start = torch.rand(n, dtype=dtype) * 3
    t_end = t_start + torch.rand(n, dtype=dtype) * 0.1
    density = torch.rand(n, dtype=dtype) * 8 - 0.5
    rows = [density, torch.rand(n, 3, dtype=dtype), t_start, t_end, torch.rand(rays, 3, dtype=dtype)]
    return [row.to(TRITON_DEVICE) for row in rows], Pack(*(part.to(TRITON_DEVICE) for part in pack_counts(count)))


def run(backend: dispatch.Backend, rows: list[Tensor], pack: Pack, background: Tensor | None) -> Volume:
    with dispatch.force(backend):
        return volume(*rows[:4], pack, background)


@pytest.mark.parametrize("backend", ["reference", "gpu"])
def test_volume_matches_hand_computed_ray(backend: dispatch.Backend) -> None:
    """Two samples of opacity 1/2 over white: weights 1/2 and 1/4, a quarter of the background."""
    rows = [
        torch.full((2,), math.log(2.0)),
        torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]),
        torch.tensor([1.0, 2.0]),
        torch.tensor([2.0, 3.0]),
    ]
    pack = Pack(*(part.to(TRITON_DEVICE) for part in pack_counts(torch.tensor([2]))))
    out = run(backend, [row.to(TRITON_DEVICE) for row in rows], pack, torch.ones(3, device=TRITON_DEVICE))
    assert out.weights.tolist() == pytest.approx([0.5, 0.25])
    assert out.transmittance.tolist() == pytest.approx([1.0, 0.5])
    assert out.alphas.tolist() == pytest.approx([0.5, 0.5])
    assert out.colour[0].tolist() == pytest.approx([0.75, 0.5, 0.25])
    assert out.opacity.tolist() == pytest.approx([0.75])
    assert out.depth.tolist() == pytest.approx([0.5 * 1.5 + 0.25 * 2.5])


def test_reference_passes_gradcheck() -> None:
    (density, colour, t_start, t_end, background), pack = ragged(4, torch.float64, most=6)
    leaves = [x.clone().requires_grad_() for x in (density, colour, background)]
    assert torch.autograd.gradcheck(lambda d, c, b: tuple(volume(d, c, t_start, t_end, pack, b)), leaves)


@pytest.mark.parametrize("rays", [0, 1, 40])
@pytest.mark.parametrize("kind", ["each", "shared", "none"])
def test_gpu_matches_reference_outputs_and_gradients(rays: int, kind: str) -> None:
    pytest.importorskip("triton")
    rows, pack = ragged(rays)
    background = {"each": rows[4], "shared": torch.rand(3, device=TRITON_DEVICE), "none": None}[kind]
    leaves = [x.clone().requires_grad_() for x in (rows[0], rows[1], background) if x is not None]
    results = {}
    grads: list[Tensor] = []
    for backend in ("gpu", "reference"):
        ours = [leaves[0], leaves[1], rows[2], rows[3]]
        out = run(backend, ours, pack, leaves[2] if len(leaves) > 2 else None)  # type: ignore[arg-type]
        grads = grads or [torch.randn_like(part) for part in out]
        results[backend] = (*(part.detach() for part in out), *torch.autograd.grad(out, leaves, grads))
    names = (*Volume._fields, "d density", "d colour", "d background")
    for name, got, expected in zip(names, results["gpu"], results["reference"], strict=False):
        assert got.shape == expected.shape, name
        assert torch.allclose(got, expected, rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize("used", range(6))
def test_gradient_through_a_single_output_matches_reference(used: int) -> None:
    pytest.importorskip("triton")
    rows, pack = ragged(12)
    leaves = [x.clone().requires_grad_() for x in (rows[0], rows[1], rows[4])]
    results = []
    for backend in ("gpu", "reference"):
        out = run(backend, [leaves[0], leaves[1], rows[2], rows[3]], pack, leaves[2])[used]  # type: ignore[arg-type]
        loss = (out * torch.linspace(-1, 1, out.numel(), device=out.device).reshape(out.shape)).sum()
        results.append(torch.autograd.grad(loss, leaves, allow_unused=True))
    for got, expected in zip(*results, strict=True):
        assert torch.allclose(got, torch.zeros_like(got) if expected is None else expected, rtol=1e-4, atol=1e-5)


def test_second_derivatives_are_those_of_the_reference() -> None:
    pytest.importorskip("triton")
    rows, pack = ragged(6, most=12)
    found = []
    for backend in ("gpu", "reference"):
        density = rows[0].clone().requires_grad_()
        out = run(backend, [density, *rows[1:4]], pack, rows[4])  # type: ignore[arg-type]
        with dispatch.force(backend):  # type: ignore[arg-type]
            (slope,) = torch.autograd.grad(out.colour.square().sum() + out.alphas.sum(), density, create_graph=True)
            found.append(torch.autograd.grad(slope.square().sum(), density)[0])
    assert torch.allclose(*found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("backend", ["reference", "gpu"])
def test_opaque_and_faint_samples(backend: dispatch.Backend) -> None:
    """Behind an infinite density nothing is seen, and no NaN arises. Small opacities keep their digits."""
    rows = [torch.tensor([1e-4, math.inf, 2.0]), torch.ones(3, 3), torch.zeros(3), torch.tensor([1e-3, 0.5, 1.0])]
    rows = [row.to(TRITON_DEVICE) for row in rows]
    rows[0].requires_grad_()
    pack = Pack(*(part.to(TRITON_DEVICE) for part in pack_counts(torch.tensor([3]))))
    out = run(backend, rows, pack, None)
    assert out.alphas[0].item() == pytest.approx(1e-7, rel=1e-5)
    assert out.transmittance.tolist() == [1.0, pytest.approx(1.0), 0.0]
    assert out.weights[2].item() == 0
    (grad,) = torch.autograd.grad(out.colour.sum(), rows[0])
    assert bool(grad.isfinite().all())
    assert grad[1].item() == 0


def test_wrong_background_shape_raises() -> None:
    rows, pack = ragged(4)
    with pytest.raises(ConfigError, match=r"`background` must have shape \[3\] or \[4, 3\], got \[3, 3\]"):
        volume(*rows[:4], pack, rows[4][:3])

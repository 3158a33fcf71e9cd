"""Gradients of the loss in each sample's pre-activations: by hand, by finite differences, kernels vs. reference."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.judge import reference
from raymine.kernels.judge.op import Wanted, judge
from raymine.kernels.packed import Samples, pack_counts
from raymine.losses import ColourLoss
from raymine.render import HIDDEN, FieldOutput, composite_output
from support.device import TRITON_DEVICE

pytestmark = pytest.mark.usefixtures("poisoned")


def batch(rays: int) -> tuple[Tensor, Tensor, Samples, Wanted]:
    """Pre-activations of ragged rays; some hidden, some beyond the cap, some pixels masked out."""
    count = torch.randint(0, 30, (rays,))
    count[torch.rand(rays) < 0.3] = 0
    n = int(count.sum())
    t_start = torch.rand(n) * 3
    density = torch.randn(n) * 3
    density[torch.rand(n) < 0.2] = HIDDEN
    density[torch.rand(n) < 0.02] = 20.0
    samples = Samples.from_pack(t_start, t_start + torch.rand(n) * 0.1, pack_counts(count))
    weight = (torch.rand(rays) > 0.2).float()
    return torch.randn(n, 3), density, samples, Wanted(torch.rand(rays, 3), torch.rand(rays, 3), weight)


def device_of(backend: str) -> str:
    """The device for the tensors of a backend."""
    if backend != "gpu":
        return "cpu"
    pytest.importorskip("triton")
    return TRITON_DEVICE


def moved(parts: Any, device: str) -> Any:
    """A named tuple of tensors on another device."""
    return type(parts)(*(part.to(device) for part in parts))


@pytest.mark.parametrize("backend", ["reference", "cpu", "gpu"])
def test_judge_matches_hand_computed_ray(backend: dispatch.Backend) -> None:
    """One sample of opacity 1/2 (density ln 2 over length 1) and colour 1/2 over black; the target is white.

    Rendered 1/4, error -3/4 in each channel, loss 9/16. d loss / d colour' = 2 * (-3/4) / 3 * 1/2 * 1/4 = -1/16 each.
    d rendered / d density = length * T_after * colour = 1/2 * 1/2, times the density: ln 2 / 4 each channel; so
    d loss / d density' = 3 * 2 * (-3/4) / 3 * ln 2 / 4 = -3 ln 2 / 8.
    """
    device = device_of(backend)
    samples = Samples.from_pack(torch.tensor([1.0]), torch.tensor([2.0]), pack_counts(torch.tensor([1])))
    wanted = Wanted(torch.ones(1, 3), torch.zeros(1, 3), torch.ones(1))
    raw = torch.tensor([[0.0, 0.0, 0.0, 1 + math.log(math.log(2))]], device=device)
    with dispatch.force(backend):
        out = judge(raw[:, :3], raw[:, 3], samples.to(device), moved(wanted, device))
    assert out.loss.tolist() == pytest.approx([9 / 16])
    assert out.error.tolist() == pytest.approx([9 / 16])
    assert out.size.item() == pytest.approx(math.hypot(3**0.5 / 16, 3 * math.log(2) / 8), rel=1e-5)
    assert out.gradient[0].tolist() == pytest.approx([-1 / 16, -1 / 16, -1 / 16, -3 * math.log(2) / 8], rel=1e-5)


@pytest.mark.parametrize("delta", [math.inf, 0.1])
@pytest.mark.parametrize(
    ("backend", "rays"), [("cpu", 0), ("cpu", 1), ("cpu", 63), ("cpu", 1000), ("gpu", 0), ("gpu", 1), ("gpu", 40)]
)
@pytest.mark.parametrize("stop", [1e-4, 1e-1])
def test_kernels_match_reference(backend: dispatch.Backend, rays: int, delta: float, stop: float) -> None:
    colour, density, samples, wanted = batch(rays)
    device = device_of(backend)
    with dispatch.force(backend):
        got = judge(colour.to(device), density.to(device), samples.to(device), moved(wanted, device), delta, stop)
    got = moved(got, "cpu")
    with dispatch.force("reference"):
        expected = judge(colour, density, samples, wanted, delta, stop)
    for name, a, b in zip(got._fields, got, expected, strict=True):
        # A density's gradient is its optical depth times a difference of rounded float32 numbers. The Triton kernel
        # goes front to back and subtracts to get the colour behind a sample: errors up to 5e-5 in a thousand batches.
        limit = (2e-4 if backend == "gpu" else 2e-5) * float(b.abs().max()) if b.numel() else 0.0
        assert torch.allclose(a, b, rtol=1e-3, atol=limit), name


def ascending(samples: Samples) -> Samples:
    """The same packing with intervals that ascend along each ray, as the distortion wants them."""
    place = torch.arange(len(samples)) - samples.first[samples.ray_id]
    t_start = 0.05 + place * 0.11 + torch.rand(len(samples)) * 0.05
    return Samples.from_pack(t_start, t_start + torch.rand(len(samples)) * 0.05, samples.pack)


@pytest.mark.parametrize(("distortion", "fade"), [(0.3, 0.0), (0.0, 1.0), (0.3, 1.0)])
@pytest.mark.parametrize(
    ("backend", "rays"), [("cpu", 0), ("cpu", 1), ("cpu", 63), ("cpu", 500), ("gpu", 1), ("gpu", 40)]
)
def test_distortion_and_fade_match_reference(
    backend: dispatch.Backend, rays: int, distortion: float, fade: float
) -> None:
    colour, density, samples, wanted = batch(rays)
    samples, device, options = ascending(samples), device_of(backend), {"distortion": distortion, "fade": fade}
    with dispatch.force(backend):
        got = judge(colour.to(device), density.to(device), samples.to(device), moved(wanted, device), **options)
    with dispatch.force("reference"):
        expected = judge(colour, density, samples, wanted, **options)
        plain = judge(colour, density, samples, wanted)
    for name, a, b in zip(got._fields, moved(got, "cpu"), expected, strict=True):
        # The distortion of a ray is a difference of sums of float32 numbers.
        limit = 2e-4 * float(b.abs().max()) if b.numel() else 0.0
        assert torch.allclose(a, b, rtol=1e-3, atol=limit), name
    if rays > 1:
        assert not torch.allclose(expected.gradient, plain.gradient, rtol=1e-3, atol=1e-6)


def test_distortion_matches_the_double_sum() -> None:
    """Three intervals of one ray, each term of the double sum written out."""
    weights = torch.tensor([0.2, 0.5, 0.1], dtype=torch.float64)
    t_start, t_end = torch.tensor([0.5, 1.0, 4.0]).double(), torch.tensor([0.6, 1.5, 9.0]).double()
    near, far = t_start / (1 + t_start), t_end / (1 + t_end)
    middle = (near + far) / 2
    pairs = weights[:, None] * weights[None, :] * (middle[:, None] - middle[None, :]).abs()
    expected = pairs.sum() + (weights**2 * (far - near)).sum() / 3
    pack = pack_counts(torch.tensor([0, 3]))
    got = reference.distortions(weights, t_start, t_end, *pack)
    assert got.tolist() == pytest.approx([0.0, float(expected)], rel=1e-12)


@pytest.mark.parametrize("kind", ["l2", "huber"])
def test_gradient_equals_autograd_through_render_and_loss(kind: str) -> None:
    """The policies `none` and `prune` take these three steps separately."""
    colour, density, samples, wanted = batch(200)
    loss = ColourLoss(kind)  # type: ignore[arg-type]
    leaves = colour.clone().requires_grad_(), density.clone().requires_grad_()
    rendered = composite_output(FieldOutput(*leaves), samples, wanted.background)
    total = loss.of(rendered.colour, wanted.colour, wanted.weight)
    expected = torch.autograd.grad(total, leaves)
    got = judge(colour, density, samples, wanted, loss.threshold)
    assert float(got.loss.sum()) == pytest.approx(float(total.detach()), rel=1e-5)
    limit = 2e-5 * float(got.gradient.abs().max())
    assert torch.allclose(got.gradient[:, :3], expected[0], rtol=1e-3, atol=limit)
    assert torch.allclose(got.gradient[:, 3], expected[1], rtol=1e-3, atol=limit)


def test_reference_gradient_matches_finite_differences() -> None:
    """Finite differences of the reference's own loss in float64, for densities below the cap."""
    colour, density, samples, wanted = batch(6)
    density = density.clamp(-3, 2).double()
    given = (samples.t_start, samples.t_end, *samples.pack, wanted.background, wanted.colour, wanted.weight)
    rows = [part.double() if part.is_floating_point() else part for part in given]
    colour = colour.double()

    def total(c: Tensor, d: Tensor) -> float:
        return float(reference.judge(c, d, *rows, math.inf, 0.0)[2].sum())

    gradient = reference.judge(colour, density, *rows, math.inf, 0.0)[0]
    h = 1e-6
    for i in range(0, len(density), max(1, len(density) // 10)):
        step = torch.zeros_like(density)
        step[i] = h
        slope = (total(colour, density + step) - total(colour, density - step)) / (2 * h)
        assert slope == pytest.approx(float(gradient[i, 3]), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_nan_density_makes_the_loss_nan_and_keeps_sizes_finite(backend: dispatch.Backend) -> None:
    colour, density, samples, wanted = batch(50)
    density[0] = math.nan
    with dispatch.force(backend):
        out = judge(colour, density, samples, wanted._replace(weight=torch.ones(50)))
    assert out.loss.sum().isnan()
    assert out.size.isfinite().all()


@pytest.mark.parametrize("options", [{"distortion": -1.0}, {"fade": -0.1}, {"distortion": math.inf}])
def test_negative_or_infinite_options_raise(options: dict[str, float]) -> None:
    colour, density, samples, wanted = batch(4)
    with pytest.raises(ConfigError, match=r"must be"):
        judge(colour, density, samples, wanted, **options)  # type: ignore[arg-type]


def test_wrong_weight_shape_raises() -> None:
    colour, density, samples, wanted = batch(4)
    with pytest.raises(ConfigError, match=r"`wanted.weight` must have shape \[4\], got \[3\]"):
        judge(colour, density, samples, wanted._replace(weight=torch.ones(3)))

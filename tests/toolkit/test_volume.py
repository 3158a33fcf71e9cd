"""Volume rendering functions: a ray by hand, a plain loop, gradients, edge cases, and properties of the weights."""

from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import dispatch
from raymine.kernels.composite.op import composite
from raymine.kernels.packed import Samples
from raymine.toolkit import volume
from raymine.toolkit.pack import Pack, pack_counts
from support.device import TRITON_DEVICE
from support.paths import DOCS

PAGE = DOCS / "toolkit" / "volume.md"
HALF = math.log(2.0)
"""The density with a transmittance of one half per unit of length."""


def ragged(rays: int = 12, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Pack]:
    """t_start, t_end, density, pack; some rays have no samples."""
    torch.manual_seed(rays)
    count = torch.randint(0, 20, (rays,))
    count[::4] = 0
    t = torch.rand(int(count.sum()), dtype=dtype) * 3
    return t, t + torch.rand_like(t) * 0.2, torch.rand_like(t) * 20, pack_counts(count)


def looped(optical: list[float], before: float = 1.0) -> tuple[list[float], list[float], list[float]]:
    """Weights, transmittance and alphas of one ray by a plain loop."""
    weights, through, alpha = [], [], []
    for x in optical:
        a = 1 - math.exp(-x)
        weights.append(before * a)
        through.append(before)
        alpha.append(a)
        before *= 1 - a
    return weights, through, alpha


def test_weights_match_hand_computed_ray() -> None:
    """Alphas 1/2, 1/2 and 0 give the weights 1/2, 1/4 and 0; batched and packed, from density and alpha."""
    t0, t1 = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 4.0])
    density = torch.tensor([HALF, HALF, 0.0])
    pack = pack_counts(torch.tensor([3, 0]))
    for p in (None, pack):
        found = volume.weights_from_density(t0, t1, density, p)
        assert found.weights.tolist() == pytest.approx([0.5, 0.25, 0.0])
        assert found.transmittance.tolist() == pytest.approx([1.0, 0.5, 0.25])
        assert found.alphas.tolist() == pytest.approx([0.5, 0.5, 0.0])
        assert volume.transmittance_from_density(t0, t1, density, p).tolist() == pytest.approx([1.0, 0.5, 0.25])
        alpha = torch.tensor([0.5, 0.5, 0.0])
        assert volume.transmittance_from_alpha(alpha, p).tolist() == [1.0, 0.5, 0.25]
        assert [x.tolist() for x in volume.weights_from_alpha(alpha, p)[:2]] == [[0.5, 0.25, 0.0], [1.0, 0.5, 0.25]]
        assert volume.visible_from_alpha(alpha, p, stop=0.3).tolist() == [True, True, False]
        assert volume.visible_from_alpha(alpha, p, faint=0.1).tolist() == [True, True, False]
        assert volume.visible_from_density(t0, t1, density, p, stop=0.6).tolist() == [True, False, False]
    assert volume.alphas(t0, t1, density).tolist() == pytest.approx([0.5, 0.5, 0.0])
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]])
    assert volume.accumulate(found.weights, values, pack).tolist() == [pytest.approx([0.5, 0.25]), [0.0, 0.0]]
    assert volume.accumulate(found.weights, None, pack).flatten().tolist() == pytest.approx([0.75, 0.0])
    assert volume.accumulate(found.weights, values).tolist() == pytest.approx([0.5, 0.25])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_weights_match_plain_loop(dtype: torch.dtype) -> None:
    t0, t1, density, pack = ragged(dtype=dtype)
    prefix = torch.rand(pack.n_rays, dtype=dtype)[pack.ray_id()]
    optical = ((t1 - t0) * density).split(pack.count.tolist())
    before = [part[0].item() if len(part) else 1.0 for part in prefix.split(pack.count.tolist())]
    expected = [looped(part.tolist(), first) for part, first in zip(optical, before, strict=True)]
    found = volume.weights_from_density(t0, t1, density, pack, prefix)
    by_alpha = volume.weights_from_alpha(found.alphas, pack, prefix)
    near = 1e-5 if dtype == torch.float32 else 1e-11
    for which in range(3):
        wanted = [x for ray in expected for x in ray[which]]
        assert found[which].tolist() == pytest.approx(wanted, rel=near, abs=near)
        assert by_alpha[which].tolist() == pytest.approx(wanted, rel=near, abs=near)
    values = torch.rand(len(t0), 4, dtype=dtype)
    sums = volume.accumulate(found.weights, values, pack)
    parts = (found.weights[:, None] * values).split(pack.count.tolist())
    assert torch.allclose(sums, torch.stack([part.sum(0) for part in parts]), rtol=near)


def test_rendering_matches_composite_kernel() -> None:
    t0, t1, density, pack = ragged(dtype=torch.float32)
    colour, background = torch.rand(len(t0), 3), torch.rand(pack.n_rays, 3)
    fused = composite(density, colour, Samples.from_pack(t0, t1, pack), background, stop=0.0)
    asked: list[Tensor | None] = []

    def field(a: Tensor, b: Tensor, ray: Tensor | None) -> tuple[Tensor, Tensor]:
        asked.append(ray)
        assert a is t0
        assert b is t1
        return colour, density

    colours, opacities, depths, extras = volume.rendering(t0, t1, pack, rgb_sigma_fn=field, background=background)
    assert torch.equal(asked[0], pack.ray_id())  # type: ignore[arg-type]
    assert torch.allclose(colours, fused.colour, atol=1e-5)
    assert torch.allclose(opacities[:, 0], fused.opacity, atol=1e-5)
    assert torch.allclose(depths[:, 0], fused.depth / fused.opacity.clamp_min(1e-7), atol=1e-5)
    assert torch.allclose(extras["weights"], fused.weights, atol=1e-6)
    assert set(extras) == {"weights", "trans", "alphas", "rgbs", "sigmas"}
    assert len(asked) == 1
    alpha = extras["alphas"]
    again = volume.rendering(t0, t1, pack, rgb_alpha_fn=lambda a, b, ray: (colour, alpha), background=background)
    assert torch.allclose(again[0], colours, atol=1e-5)
    assert set(again[3]) == {"weights", "trans", "alphas", "rgbs"}


def test_batched_rendering_matches_hand_computation() -> None:
    t0 = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    density = torch.tensor([[HALF, HALF], [0.0, 0.0]])
    colours, opacities, depths, _ = volume.rendering(
        t0,
        t0 + 1,
        rgb_sigma_fn=lambda a, b, ray: (torch.ones(2, 2, 3), density),
        background=torch.tensor([0.0, 1.0, 2.0]),
    )
    assert colours[0].tolist() == pytest.approx([0.75, 1.0, 1.25])
    assert colours[1].tolist() == [0.0, 1.0, 2.0]
    assert opacities.flatten().tolist() == pytest.approx([0.75, 0.0])
    assert depths.flatten().tolist() == pytest.approx([(0.5 * 0.5 + 0.25 * 1.5) / 0.75, 0.0])


def test_volume_functions_pass_gradcheck() -> None:
    t0, t1, density, pack = ragged(5)
    t0, t1, density = (x.requires_grad_() for x in (t0, t1, density * 0.1))
    prefix = torch.rand_like(density).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *x: volume.weights_from_density(*x[:3], pack, x[3])[:], (t0, t1, density, prefix)
    )
    alpha = torch.rand_like(density).detach()
    alpha[::3] = 1.0
    alpha.requires_grad_()
    assert torch.autograd.gradcheck(lambda a, p: volume.weights_from_alpha(a, pack, p)[:2], (alpha, prefix))
    values = torch.rand(len(density), 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w, v: volume.accumulate(w, v, pack), (alpha, values))
    colour = torch.rand(len(density), 3, dtype=torch.float64, requires_grad=True)
    background = torch.rand(3, dtype=torch.float64, requires_grad=True)

    def render(s: Tensor, c: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        found = volume.rendering(t0.detach(), t1.detach(), pack, rgb_sigma_fn=lambda *_: (c, s), background=b)
        return found[:3]

    assert torch.autograd.gradcheck(render, (density, colour, background))


def test_faint_samples_before_an_opaque_one_keep_their_precision() -> None:
    """A sample of optical depth 1e30 behind faint ones: weights and gradients of the faint ones keep their digits."""
    t0, t1 = torch.arange(4.0), torch.arange(1.0, 5.0)
    density = torch.tensor([1e-6, 2e-6, 1e30, 5.0], requires_grad=True)
    for pack in (None, pack_counts(torch.tensor([4]))):
        found = volume.weights_from_density(t0, t1, density, pack)
        assert found.weights.tolist() == pytest.approx([1e-6, 2e-6, 1 - 3e-6, 0.0], rel=1e-5)
        assert found.transmittance[3] == 0
        (grad,) = torch.autograd.grad(found.weights[0] + found.weights[1], density)
        assert grad.tolist() == pytest.approx([1 - 3e-6, 1 - 3e-6, 0.0, 0.0], rel=1e-5)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16], ids=str)
def test_infinite_density_is_opaque_and_has_a_finite_gradient(kind: torch.dtype) -> None:
    t0 = torch.tensor([0.0, 1.0, 1.001, 2.0], dtype=kind)
    t1 = torch.tensor([1.0, 1.0, 1.5, 3.0], dtype=kind).requires_grad_()
    density = torch.tensor([HALF, math.inf, math.inf, 1.0], dtype=kind, requires_grad=True)
    for pack in (None, pack_counts(torch.tensor([4]))):
        found = volume.weights_from_density(t0, t1, density, pack)
        assert found.weights.dtype == kind
        # The second sample has no length and absorbs nothing.
        assert found.alphas[1:3].tolist() == [0.0, 1.0]
        assert found.weights.tolist() == pytest.approx([0.5, 0.0, 0.5, 0.0], rel=1e-3)
        to_density, to_end = torch.autograd.grad(found.weights.sum(), (density, t1))
        assert bool(to_density.isfinite().all())
        assert bool(to_end[[0, 2, 3]].isfinite().all())


def test_nan_stays_on_its_ray_and_counts_as_visible() -> None:
    pack = pack_counts(torch.tensor([3, 3]))
    t0, t1 = torch.arange(6.0), torch.arange(1.0, 7.0)
    density = torch.full((6,), 0.1)
    density[1] = torch.nan
    found = volume.weights_from_density(t0, t1, density, pack)
    assert found.weights.isnan().tolist() == [False, True, True, False, False, False]
    assert found.transmittance.isnan().tolist() == [False, False, True, False, False, False]
    assert volume.accumulate(found.weights, None, pack).isnan().flatten().tolist() == [True, False]
    assert bool(volume.visible_from_density(t0, t1, density, pack, stop=1e-4, faint=0.01).all())
    alpha = torch.full((6,), 0.1)
    alpha[1] = torch.inf
    through = volume.transmittance_from_alpha(alpha, pack)
    assert through.isfinite().tolist() == [True, True, False, True, True, True]


def test_small_opacities_keep_their_precision() -> None:
    t0 = torch.zeros(1)
    assert volume.alphas(t0, t0 + 1, torch.tensor([1e-10])).item() == pytest.approx(1e-10, rel=1e-5)


@pytest.mark.parametrize("rays", [0, 3])
def test_rays_without_samples_show_the_background(rays: int) -> None:
    none = torch.zeros(0, requires_grad=True)
    pack = pack_counts(torch.zeros(rays, dtype=torch.int64))
    found = volume.weights_from_density(none, none, none, pack)
    sums = volume.accumulate(found.weights, torch.zeros(0, 2), pack)
    assert sums.tolist() == [[0.0, 0.0]] * rays
    sums.sum().backward()
    assert volume.visible_from_density(none, none, none, pack).shape == (0,)

    def never(*_: object) -> tuple[Tensor, Tensor]:
        raise AssertionError("asked about nothing")

    background = torch.tensor([0.2, 0.4, 0.6])
    for ask in ({"rgb_sigma_fn": never}, {"rgb_alpha_fn": never}):
        colours, opacities, depths, extras = volume.rendering(none, none, pack, **ask, background=background)  # type: ignore[arg-type]
        assert torch.equal(colours, background.expand(rays, 3))
        assert opacities.tolist() == depths.tolist() == [[0.0]] * rays
        assert extras["rgbs"].shape == (0, 3)
    colours = volume.rendering(torch.zeros(2, 0), torch.zeros(2, 0), rgb_sigma_fn=never)[0]
    assert colours.tolist() == [[0.0] * 3] * 2


def test_result_dtypes_follow_inputs_and_float16_is_computed_in_float32() -> None:
    t = torch.rand(4)
    pack = pack_counts(torch.tensor([4]))
    assert volume.alphas(t, t + 1, torch.ones(4, dtype=torch.float16)).dtype == torch.float32
    assert volume.weights_from_alpha(torch.rand(4).half(), pack).weights.dtype == torch.float16
    assert volume.weights_from_density(t.half(), t.half() + 1, t.half(), pack).weights.dtype == torch.float16
    # 1 - 1e-4 rounds to 1 in float16, so in float16 many such samples would keep a transmittance of 1.
    faint = torch.full((2000,), 1e-4, dtype=torch.float16)
    assert float(volume.transmittance_from_alpha(faint, pack_counts(torch.tensor([2000])))[-1]) == pytest.approx(
        0.82, abs=0.01
    )


def test_invalid_arguments_raise_config_error() -> None:
    t, pack = torch.rand(4), pack_counts(torch.tensor([4]))

    def field(*_: object) -> tuple[Tensor, Tensor]:
        return torch.rand(4, 3), torch.rand(4, 1)

    for call, words in (
        (lambda: volume.alphas(t, t, torch.rand(3)), "must have one shape, got"),
        (lambda: volume.weights_from_density(t[None], t[None], t[None], pack), r"must have shape \[B\]"),
        (lambda: volume.weights_from_alpha(t[None], pack), r"`alpha` must have shape \[B\]"),
        (lambda: volume.weights_from_alpha(t, pack, torch.rand(1)), r"`prefix` must have the shape of `alpha`, \[4\]"),
        (lambda: volume.accumulate(t, t, pack), r"`values` must have shape \[4, 'D'\], got \[4\]"),
        (lambda: volume.rendering(t, t, pack), "got neither"),
        (lambda: volume.rendering(t, t, pack, rgb_sigma_fn=field, rgb_alpha_fn=field), "got both"),
        (lambda: volume.rendering(t, t, pack, rgb_sigma_fn=field), r"densities of shape \[4\], got \[4, 1\]"),
        (lambda: volume.rendering(t, t, pack, rgb_alpha_fn=field), r"opacities of shape \[4\], got \[4, 1\]"),
        (lambda: volume.rendering(t, t[:3], pack, rgb_sigma_fn=field), "`t_end` must have the shape of `t_start`"),
        (lambda: volume.weights_from_alpha(t, pack_counts(torch.tensor([5]))), "within the 4 samples"),
    ):
        with pytest.raises(ConfigError, match=words):
            call()


optical_depths = st.lists(st.lists(st.floats(0, 8, allow_subnormal=False), max_size=6), min_size=1, max_size=5)


def packed(rays: list[list[float]]) -> tuple[Tensor, Pack]:
    return torch.tensor([x for ray in rays for x in ray], dtype=torch.float64), pack_counts(
        torch.tensor([len(ray) for ray in rays])
    )


@given(optical_depths)
@settings(deadline=None, max_examples=40)
def test_weights_sum_to_the_opacity_of_the_ray(rays: list[list[float]]) -> None:
    """The sum is 1 - exp(-total optical depth), however the ray is divided into samples."""
    x, pack = packed(rays)
    weights = volume.weights_from_density(torch.zeros_like(x), torch.ones_like(x), x, pack).weights
    assert bool((weights >= 0).all())
    sums = volume.accumulate(weights, None, pack)[:, 0]
    assert sums.tolist() == pytest.approx([1 - math.exp(-sum(ray)) for ray in rays], abs=1e-12)


@given(optical_depths)
@settings(deadline=None, max_examples=40)
def test_density_and_alpha_give_equal_weights_and_decreasing_transmittance(rays: list[list[float]]) -> None:
    x, pack = packed(rays)
    found = volume.weights_from_density(torch.zeros_like(x), torch.ones_like(x), x, pack)
    assert torch.allclose(volume.weights_from_alpha(found.alphas, pack).weights, found.weights, atol=1e-12)
    for part in found.transmittance.split(pack.count.tolist()):
        assert bool((part[1:] <= part[:-1]).all())
        assert part[:1].tolist() == [1.0] * len(part[:1])


@given(optical_depths, st.floats(0, 1))
@settings(deadline=None, max_examples=40)
def test_prefix_equals_a_sample_in_front(rays: list[list[float]], share: float) -> None:
    """A first sample of transmittance `share` has the same effect as a prefix of `share` for the rest of the ray."""
    _, pack = packed(rays)
    alpha = torch.tensor([-math.expm1(-x) for ray in rays for x in ray], dtype=torch.float64)
    parts = alpha.split(pack.count.tolist())
    longer = torch.cat([torch.cat((torch.tensor([1 - share], dtype=torch.float64), part)) for part in parts])
    longer_pack = pack_counts(pack.count + 1)
    whole = volume.weights_from_alpha(longer, longer_pack).weights.split(longer_pack.count.tolist())
    behind = volume.weights_from_alpha(alpha, pack, torch.full_like(alpha, 1 - (1 - share))).weights
    assert torch.allclose(torch.cat([part[1:] for part in whole]), behind, atol=1e-12)


@given(optical_depths, st.floats(1e-4, 0.9))
@settings(deadline=None, max_examples=40)
def test_hidden_samples_weigh_at_most_the_stop_transmittance(rays: list[list[float]], stop: float) -> None:
    x, pack = packed(rays)
    zero, one = torch.zeros_like(x), torch.ones_like(x)
    weights = volume.weights_from_density(zero, one, x, pack).weights
    hidden = ~volume.visible_from_density(zero, one, x, pack, stop=stop)
    assert bool((volume.accumulate(weights * hidden, None, pack) <= stop).all())


def test_documentation_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {})


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("behind", ["each", "shared", "none"])
def test_rendering_by_one_kernel_equals_rendering_by_parts(batched: bool, behind: str) -> None:
    pytest.importorskip("triton")
    t_start, t_end, density, pack = (x for x in ragged(6, torch.float32))
    if batched:
        t_start, t_end, density = (x[:33].reshape(3, 11) for x in (t_start, t_end, density))
    rays = 3 if batched else 6
    torch.manual_seed(1)
    rgb, chosen = torch.rand(*t_start.shape, 3), {"each": torch.rand(rays, 3), "shared": torch.rand(3), "none": None}
    leaves = [x.to(TRITON_DEVICE).requires_grad_() for x in (density * 0.3, rgb, chosen[behind]) if x is not None]
    place = [x.to(TRITON_DEVICE) for x in (t_start, t_end)]
    results = []
    for backend in ("gpu", "reference"):
        with dispatch.force(backend):  # type: ignore[arg-type]
            colours, opacities, depths, extras = volume.rendering(
                *place,
                None if batched else Pack(*(part.to(TRITON_DEVICE) for part in pack)),
                rgb_sigma_fn=lambda *_: (leaves[1], leaves[0]),
                background=leaves[2] if len(leaves) > 2 else None,
            )
            outs = [colours, opacities, depths, *(extras[name] for name in ("weights", "trans", "alphas"))]
            assert ("VolumeBackward" in type(colours.grad_fn).__name__) == (backend == "gpu"), "the kernel was used"
            torch.manual_seed(2)
            grads = torch.autograd.grad(outs, leaves, [torch.randn_like(out) for out in outs])
            results.append([*(out.detach() for out in outs), *grads])
    for got, expected in zip(*results, strict=True):
        assert got.shape == expected.shape
        assert torch.allclose(got, expected, rtol=1e-4, atol=1e-5)

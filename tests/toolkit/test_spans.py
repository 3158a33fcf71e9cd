"""The normalised distance along rays: distances and their inverse, by hand, rays that miss, and errors."""

from __future__ import annotations

import math

import pytest
import torch

from raymine.errors import ConfigError
from raymine.toolkit.proposal import RaySpan


def test_ray_span_distances_match_hand_computation() -> None:
    s = torch.tensor([[0.0, 0.25, 0.5, 1.0]])
    assert RaySpan(2.0, 6.0, 1, "uniform").distances(s).tolist() == [[2.0, 3.0, 4.0, 6.0]]
    assert RaySpan(2.0, 6.0, 1).distances(s)[0].tolist() == pytest.approx([2.0, 2.4, 3.0, 6.0])
    near, far = torch.tensor([2.0, 1.0]), torch.tensor([6.0, 4.0])
    got = RaySpan(near, far, spacing="uniform").distances(s.expand(2, 4))
    assert got.tolist() == [[2.0, 3.0, 4.0, 6.0], [1.0, 1.75, 2.5, 4.0]]
    mixed = RaySpan(2.0, torch.tensor([6.0, 4.0]), spacing="uniform")
    assert mixed.distances(s.expand(2, 4))[1].tolist() == [2.0, 2.5, 3.0, 4.0]


@pytest.mark.parametrize("spacing", ["uniform", "lindisp"])
def test_rays_that_miss_have_intervals_of_zero_length(spacing: str) -> None:
    inf, nan = math.inf, math.nan
    near = torch.tensor([1.0, 3.0, inf, nan, 2.0, 0.0, -2.0])
    far = torch.tensor([2.0, 1.0, inf, 4.0, inf, 4.0, -1.0])
    got = RaySpan(near, far, spacing=spacing).distances(torch.linspace(0, 1, 5).expand(7, 5))  # type: ignore[arg-type]
    assert bool(torch.isfinite(got).all())
    assert got[0, 0].item() == pytest.approx(1)
    assert got[0, -1].item() == pytest.approx(2)
    assert got[1:5].tolist() == [[3.0] * 5, [0.0] * 5, [0.0] * 5, [2.0] * 5]
    assert got[5, 0].item() == pytest.approx(0, abs=1e-5)
    assert got[5, -1].item() == pytest.approx(4)
    assert got[6, -1].item() == pytest.approx(-1.0 if spacing == "uniform" else -2.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0, 3), "`near` must be positive with lindisp, got 0.0"),
        ((2.0, 1.0, 3), "`far` must be beyond `near`, got near 2.0 and far 1.0"),
        ((1.0, math.inf, 3), "`far` must be finite, got inf"),
        ((1.0, 2.0), "`n_rays` must be given when near and far are numbers"),
        ((1.0, 2.0, 3, "log"), "`spacing` must be uniform or lindisp, got 'log'"),
        ((torch.ones(3), torch.ones(2)), r"`far` must be a number or of shape \[3\], got \[2\]"),
        ((torch.ones(3), 2.0, 4), r"near and far must be of shape \[R\] with R = n_rays, got \[3\]"),
    ],
)
def test_invalid_ray_spans_raise(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RaySpan(*arguments)  # type: ignore[arg-type]


def test_far_beyond_half_precision_is_not_a_miss() -> None:
    """float16 ends at 65504; the distances of s in half precision are computed in float32."""
    s = torch.tensor([[0.0, 0.25, 0.5]], dtype=torch.float16)
    found = RaySpan(1.0, 1e6, 1).distances(s)
    assert found.dtype == torch.float16
    assert found.tolist() == [[1.0, pytest.approx(4 / 3, rel=1e-3), pytest.approx(2.0, rel=1e-3)]]


@pytest.mark.parametrize("spacing", ["uniform", "lindisp"])
def test_normalised_is_the_inverse_of_distances(spacing: str) -> None:
    near, far = torch.tensor([0.2, 1.0, 3.0]), torch.tensor([1e3, 4.0, 3.5])
    span = RaySpan(near, far, spacing=spacing)  # type: ignore[arg-type]
    s = torch.linspace(0, 1, 33).expand(3, 33)
    ray = torch.arange(3).repeat_interleave(33)
    found = span.normalised(span.distances(s).flatten(), ray)
    assert torch.allclose(found, s.flatten(), atol=2e-6)
    assert bool((found.view(3, 33).diff(dim=1) >= 0).all())
    # Each ray has its own near and far, in any order.
    assert span.normalised(torch.tensor([4.0, 3.0]), torch.tensor([1, 2])).tolist() == [1.0, 0.0]
    numbers = RaySpan(2.0, 6.0, 1, spacing)  # type: ignore[arg-type]
    assert numbers.normalised(torch.tensor([3.0]), torch.tensor([0])).item() == pytest.approx(
        0.25 if spacing == "uniform" else 0.5
    )


@pytest.mark.parametrize("spacing", ["uniform", "lindisp"])
def test_normalised_clamps_and_gives_zero_on_rays_that_miss(spacing: str) -> None:
    near, far = torch.tensor([1.0, 3.0, math.inf, math.nan]), torch.tensor([2.0, 1.0, math.inf, 4.0])
    span = RaySpan(near, far, spacing=spacing)  # type: ignore[arg-type]
    t = torch.tensor([0.0, -1.0, 5.0, 2.0, 2.0, 2.0]).requires_grad_()
    found = span.normalised(t, torch.tensor([0, 0, 0, 1, 2, 3]))
    assert found.tolist() == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    found.sum().backward()
    assert t.grad is not None
    assert bool(torch.isfinite(t.grad).all())


def test_normalised_passes_gradcheck() -> None:
    near, far = torch.tensor([0.5, 1.0]).double(), torch.tensor([3.0, 4.0]).double()
    t, ray = torch.tensor([0.7, 1.9, 2.1, 3.3]).double().requires_grad_(), torch.tensor([0, 0, 1, 1])
    for spacing in ("uniform", "lindisp"):
        span = RaySpan(near, far, spacing=spacing)  # type: ignore[arg-type]
        assert torch.autograd.gradcheck(lambda t, span=span: span.normalised(t, ray), [t])


def test_normalised_refuses_wrong_rays() -> None:
    span = RaySpan(torch.ones(2), torch.full((2,), 3.0))
    with pytest.raises(ConfigError, match=r"`ray` must be in 0 \.\. 1, got 0 \.\. 2"):
        span.normalised(torch.ones(2), torch.tensor([0, 2]))
    with pytest.raises(ConfigError, match=r"`ray` must have shape \[2\], got \[1\]"):
        span.normalised(torch.ones(2), torch.tensor([0]))
    with pytest.raises(ConfigError, match=r"`t` must have shape \[B\], got \[2, 1\]"):
        span.normalised(torch.ones(2, 1), torch.tensor([0, 1]))

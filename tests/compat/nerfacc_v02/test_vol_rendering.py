"""`vol_rendering` of nerfacc 0.2: a ray that stops, faint samples, gradients, samples without a ray, refusals."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from raymine.compat import nerfacc_v02 as nerfacc
from raymine.errors import ConfigError

INFO = torch.tensor([[0, 1], [1, 0], [1, 4]], dtype=torch.int32)
ALPHAS = torch.tensor([[0.4], [0.3], [0.8], [0.8], [0.5]])
CUTS = [(0.0, 0.0), (0.03, 0.0), (0.05, 0.35), (1e-4, 0.6)]
by_every_cut = pytest.mark.parametrize(("eps", "thre"), CUTS)

SEEN = "early_stop_eps=0.0001, alpha_thre=0.0"
SIGNATURES = {
    "rendering": f"packed_info, t_starts, t_ends, rgb_sigma_fn=None, rgb_alpha_fn=None, {SEEN}, render_bkgd=None",
    "accumulate_along_rays": "weights, ray_indices, values=None, n_rays=None",
    "render_weight_from_density": f"packed_info, t_starts, t_ends, sigmas, {SEEN}",
    "render_weight_from_alpha": f"packed_info, alphas, {SEEN}",
    "render_visibility": f"packed_info, alphas, {SEEN}",
}


def walk(info: Tensor, alphas: list[float], eps: float, thre: float) -> tuple[list[float], list[bool]]:
    """Weights and visibility, sample after sample."""
    weights, seen = [0.0] * len(alphas), [False] * len(alphas)
    for first, count in info.tolist():
        through = 1.0
        for i in range(first, first + count):
            if through < eps:
                break
            if alphas[i] < thre:
                continue
            weights[i], seen[i] = through * alphas[i], True
            through *= 1 - alphas[i]
    return weights, seen


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_equal_those_of_nerfacc(name: str) -> None:
    parameters = inspect.signature(getattr(nerfacc, name)).parameters.values()
    found = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters)
    assert found == SIGNATURES[name]


@by_every_cut
def test_weights_and_visibility_equal_a_walk_along_each_ray(eps: float, thre: float) -> None:
    weights, seen = walk(INFO, ALPHAS[:, 0].tolist(), eps, thre)
    torch.testing.assert_close(nerfacc.render_weight_from_alpha(INFO, ALPHAS, eps, thre), torch.tensor(weights))
    start = torch.rand(5, 1)
    sigmas = -torch.log1p(-ALPHAS) / 0.5
    found = nerfacc.render_weight_from_density(INFO, start, start + 0.5, sigmas, eps, thre)
    torch.testing.assert_close(found, torch.tensor(weights))
    visible, info = nerfacc.render_visibility(INFO, ALPHAS, eps, thre)
    assert visible.tolist() == seen
    assert info.dtype == torch.int32
    assert info.tolist() == [[0, int(seen[0])], [int(seen[0]), 0], [int(seen[0]), sum(seen[1:])]]


@by_every_cut
def test_gradients_equal_finite_differences(eps: float, thre: float) -> None:
    alphas = ALPHAS.double().requires_grad_()
    start = torch.rand(5, 1, dtype=torch.float64)
    sigmas = (-torch.log1p(-ALPHAS.double()) / 0.5).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: nerfacc.render_weight_from_alpha(INFO, a, eps, thre), alphas)
    assert torch.autograd.gradcheck(
        lambda s: nerfacc.render_weight_from_density(INFO, start, start + 0.5, s, eps, thre), sigmas
    )


def test_samples_without_a_ray_have_weight_and_gradient_zero() -> None:
    info = torch.tensor([[6, 2], [0, 0], [1, 3]])
    alphas = torch.full((9, 1), 0.5, requires_grad=True)
    weights = nerfacc.render_weight_from_alpha(info, alphas)
    assert weights.tolist() == [0, 0.5, 0.25, 0.125, 0, 0, 0.5, 0.25, 0]
    weights.sum().backward()
    assert alphas.grad is not None
    assert bool(alphas.grad.isfinite().all())
    assert alphas.grad[[0, 4, 5, 8]].abs().sum() == 0
    visible, visible_info = nerfacc.render_visibility(info, alphas, alpha_thre=0.1)
    assert visible.tolist() == [False, True, True, True, False, False, True, True, False]
    assert visible_info.tolist() == [[0, 2], [2, 0], [2, 3]]


def field(rgbs: Tensor, values: Tensor) -> Any:
    def call(t_starts: Tensor, t_ends: Tensor, ray_indices: Tensor) -> tuple[Tensor, Tensor]:
        assert t_starts.shape == t_ends.shape == (5, 1)
        assert ray_indices.tolist() == [0, 2, 2, 2, 2]
        return rgbs, values

    return call


@pytest.mark.parametrize("alpha", [False, True])
@by_every_cut
def test_rendering_equals_sums_in_a_loop(alpha: bool, eps: float, thre: float) -> None:
    rgbs, start = torch.rand(5, 3), torch.rand(5, 1).cumsum(0)
    values = ALPHAS if alpha else -torch.log1p(-ALPHAS) / 0.25
    how = {"rgb_alpha_fn" if alpha else "rgb_sigma_fn": field(rgbs, values)}
    colours, opacities, depths = nerfacc.rendering(
        INFO, start, start + 0.25, early_stop_eps=eps, alpha_thre=thre, render_bkgd=torch.ones(3), **how
    )
    weights = torch.tensor(walk(INFO, ALPHAS[:, 0].tolist(), eps, thre)[0])[:, None]
    for ray, (first, count) in enumerate(INFO.tolist()):
        own = slice(first, first + count)
        torch.testing.assert_close(opacities[ray], weights[own].sum(0))
        torch.testing.assert_close(depths[ray], (weights[own] * (start[own] + 0.125)).sum(0))
        torch.testing.assert_close(colours[ray], (weights[own] * rgbs[own]).sum(0) + 1 - opacities[ray])


def test_accumulate_along_rays_takes_flat_weights_and_small_integers() -> None:
    weights, values = torch.rand(5), torch.rand(5, 2)
    rays = torch.tensor([0, 2, 2, 2, 2], dtype=torch.int32)
    found = nerfacc.accumulate_along_rays(weights, rays, values, n_rays=3)
    torch.testing.assert_close(found[2], (weights[1:, None] * values[1:]).sum(0))
    torch.testing.assert_close(found[:2], torch.stack((weights[0] * values[0], torch.zeros(2))))
    torch.testing.assert_close(nerfacc.accumulate_along_rays(weights, rays)[2], weights[1:].sum()[None])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nerfacc.rendering(lambda *_: None, ALPHAS, ALPHAS), "`packed_info` is a function"),
        (lambda: nerfacc.rendering(INFO, ALPHAS, ALPHAS), "takes `rgb_sigma_fn` or `rgb_alpha_fn`"),
        (lambda: nerfacc.rendering(INFO[:2], ALPHAS, ALPHAS, lambda *_: None), "all 5 samples together"),
        (lambda: nerfacc.render_weight_from_alpha(INFO, ALPHAS[:, 0]), r"`alphas` must have shape \[5, 1\], got \[5\]"),
        (lambda: nerfacc.render_weight_from_alpha(INFO, ALPHAS[:3]), "must lie within the 3 samples"),
        (lambda: nerfacc.render_weight_from_alpha(INFO, ALPHAS, float("nan")), "`early_stop_eps` must be a number"),
        (lambda: nerfacc.accumulate_along_rays(ALPHAS, torch.zeros(5).long()), r"`weights` must have shape \[5\]"),
    ],
)
def test_wrong_arguments_are_refused_by_name(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()

"""`vol_rendering` of nerfacc 0.3: values by hand and by loops, gradients, empty rays, refusals."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from raymine.compat import nerfacc_v03 as nerfacc
from raymine.errors import ConfigError

RAYS = torch.tensor([0, 2, 2, 2, 2])
INFO = torch.tensor([[0, 1], [1, 0], [1, 4]], dtype=torch.int32)
ALPHAS = torch.tensor([[0.4], [0.3], [0.8], [0.8], [0.5]])
TRANS = torch.tensor([[1.0], [1.0], [0.7], [0.14], [0.028]])
WAYS: list[dict[str, Any]] = [
    {"ray_indices": RAYS},
    {"ray_indices": RAYS, "n_rays": 3},
    {"packed_info": INFO},
    {"packed_info": INFO, "ray_indices": RAYS, "n_rays": 3},
]
by_every_way = pytest.mark.parametrize("rays", WAYS, ids=["indices", "indices and number", "info", "both"])

FLAT = "*, packed_info=None, ray_indices=None, n_rays=None"
SIGNATURES = {
    "rendering": "t_starts, t_ends, ray_indices, n_rays, rgb_sigma_fn=None, rgb_alpha_fn=None, render_bkgd=None",
    "accumulate_along_rays": "weights, ray_indices, values=None, n_rays=None",
    "render_transmittance_from_density": f"t_starts, t_ends, sigmas, {FLAT}",
    "render_transmittance_from_alpha": f"alphas, {FLAT}",
    "render_weight_from_density": f"t_starts, t_ends, sigmas, {FLAT}",
    "render_weight_from_alpha": f"alphas, {FLAT}",
    "render_visibility": "alphas, *, ray_indices=None, packed_info=None, n_rays=None, early_stop_eps=0.0001, "
    "alpha_thre=0.0",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_equal_those_of_nerfacc(name: str) -> None:
    parts: list[str] = []
    for p in inspect.signature(getattr(nerfacc, name)).parameters.values():
        if p.kind is p.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(p.name if p.default is p.empty else f"{p.name}={p.default}")
    assert ", ".join(parts) == SIGNATURES[name]


@by_every_way
def test_transmittances_and_weights_by_hand(rays: dict[str, Any]) -> None:
    torch.testing.assert_close(nerfacc.render_transmittance_from_alpha(ALPHAS, **rays), TRANS)
    torch.testing.assert_close(nerfacc.render_weight_from_alpha(ALPHAS, **rays), TRANS * ALPHAS)
    start = torch.rand(5, 1)
    ends, sigmas = start + 0.5, -torch.log1p(-ALPHAS) / 0.5
    torch.testing.assert_close(nerfacc.render_transmittance_from_density(start, ends, sigmas, **rays), TRANS)
    torch.testing.assert_close(nerfacc.render_weight_from_density(start, ends, sigmas, **rays), TRANS * ALPHAS)


@by_every_way
def test_visibility_by_hand(rays: dict[str, Any]) -> None:
    seen = nerfacc.render_visibility(ALPHAS, early_stop_eps=0.03, **rays)
    assert seen.tolist() == [True, True, True, True, False]
    seen = nerfacc.render_visibility(ALPHAS, early_stop_eps=0.05, alpha_thre=0.35, **rays)
    assert seen.tolist() == [True, False, True, True, False]


def test_runs_of_indices_in_any_order_are_rays() -> None:
    found = nerfacc.render_transmittance_from_alpha(ALPHAS, ray_indices=torch.tensor([7, 3, 3, 3, 3]))
    torch.testing.assert_close(found, TRANS)


weigh, accumulate = nerfacc.render_weight_from_alpha, nerfacc.accumulate_along_rays


def field(rgbs: Tensor, values: Tensor) -> Any:
    def call(t_starts: Tensor, t_ends: Tensor, ray_indices: Tensor) -> tuple[Tensor, Tensor]:
        assert t_starts.shape == t_ends.shape == (len(ray_indices), 1)
        return rgbs, values

    return call


@pytest.mark.parametrize("alpha", [False, True])
def test_rendering_equals_sums_in_a_loop(alpha: bool) -> None:
    rgbs, start = torch.rand(5, 3), torch.rand(5, 1).cumsum(0)
    end = start + 0.25
    values = ALPHAS if alpha else -torch.log1p(-ALPHAS) / 0.25
    background = torch.tensor([0.1, 0.2, 0.3])
    how = {"rgb_alpha_fn" if alpha else "rgb_sigma_fn": field(rgbs, values), "render_bkgd": background}
    colours, opacities, depths = nerfacc.rendering(start, end, RAYS, 3, **how)
    weights = TRANS * ALPHAS
    for ray in range(3):
        own = ray == RAYS
        opacity = weights[own].sum()
        torch.testing.assert_close(opacities[ray, 0], opacity)
        # Depths are sums, which nerfacc divides by the opacity only since 0.5.
        torch.testing.assert_close(depths[ray, 0], (weights[own] * (start + end)[own] / 2).sum())
        torch.testing.assert_close(colours[ray], (weights[own] * rgbs[own]).sum(0) + background * (1 - opacity))


def test_rendering_without_samples_gives_the_background() -> None:
    none = torch.zeros(0, 1)
    background = torch.rand(2, 3)
    colours, opacities, depths = nerfacc.rendering(
        none, none, torch.zeros(0, dtype=torch.int64), 2, field(torch.zeros(0, 3), none), render_bkgd=background
    )
    torch.testing.assert_close(colours, background)
    assert opacities.tolist() == depths.tolist() == [[0.0], [0.0]]


@by_every_way
def test_gradients_equal_finite_differences(rays: dict[str, Any]) -> None:
    start = torch.rand(5, 1, dtype=torch.float64)
    alphas = ALPHAS.double().requires_grad_()
    sigmas = torch.rand(5, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: nerfacc.render_weight_from_alpha(a, **rays), alphas)
    assert torch.autograd.gradcheck(lambda a: nerfacc.render_transmittance_from_alpha(a, **rays), alphas)
    assert torch.autograd.gradcheck(lambda s: nerfacc.render_weight_from_density(start, start + 0.5, s, **rays), sigmas)
    assert torch.autograd.gradcheck(
        lambda s: nerfacc.render_transmittance_from_density(start, start + 0.5, s, **rays), sigmas
    )


def test_gradients_of_a_picture_equal_finite_differences() -> None:
    start = torch.rand(5, 1, dtype=torch.float64)
    rgbs = torch.rand(5, 3, dtype=torch.float64, requires_grad=True)
    sigmas = torch.rand(5, 1, dtype=torch.float64, requires_grad=True)
    background = torch.rand(3, dtype=torch.float64, requires_grad=True)

    def picture(rgbs: Tensor, sigmas: Tensor, background: Tensor) -> Any:
        return nerfacc.rendering(start, start + 0.5, RAYS, 3, field(rgbs, sigmas), render_bkgd=background)

    assert torch.autograd.gradcheck(picture, (rgbs, sigmas, background))


def test_accumulate_along_rays_in_any_order() -> None:
    weights = torch.rand(5, 1, dtype=torch.float64, requires_grad=True)
    values = torch.rand(5, 2, dtype=torch.float64, requires_grad=True)
    shuffled = torch.tensor([2, 0, 2, 3, 0])
    found = nerfacc.accumulate_along_rays(weights, shuffled, values, n_rays=5)
    expected = torch.stack([(weights * values)[shuffled == ray].sum(0) for ray in range(5)])
    torch.testing.assert_close(found, expected)
    assert nerfacc.accumulate_along_rays(weights, shuffled).shape == (4, 1)
    assert nerfacc.accumulate_along_rays(weights[:0], shuffled[:0], n_rays=2).tolist() == [[0.0], [0.0]]
    assert torch.autograd.gradcheck(lambda w, v: nerfacc.accumulate_along_rays(w, shuffled, v, 5), (weights, values))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: weigh(ALPHAS), "Pass `ray_indices` or `packed_info`"),
        (lambda: weigh(ALPHAS[:, 0], ray_indices=RAYS), r"`alphas` must have shape \[5, 1\]"),
        (lambda: weigh(ALPHAS, ray_indices=RAYS[:4]), r"`ray_indices` must have shape \[5\]"),
        (lambda: weigh(ALPHAS, ray_indices=RAYS.float()), "`ray_indices` must be integers"),
        (lambda: weigh(ALPHAS, ray_indices=RAYS, n_rays=2), r"must be in 0 \.\. 1"),
        (lambda: weigh(ALPHAS, ray_indices=RAYS, n_rays=2.5), "`n_rays` must be a whole"),
        (lambda: weigh(ALPHAS, packed_info=RAYS), r"`packed_info` must be a tensor of shape"),
        (lambda: weigh(ALPHAS, packed_info=INFO + 3), "rays must lie within the 5 samples"),
        (lambda: weigh([0.5], ray_indices=RAYS), "`alphas` must be a floating-point tensor"),
        (lambda: accumulate(ALPHAS, RAYS, n_rays=2), r"`ray_indices` must be in 0 \.\. 1, got 0 \.\. 2"),
        (lambda: accumulate(ALPHAS, RAYS, ALPHAS[:2]), r"`values` must have shape \[5, 1\]"),
        (lambda: accumulate(ALPHAS[:0], RAYS[:0]), "`n_rays` must be given"),
        (lambda: nerfacc.rendering(ALPHAS, ALPHAS, RAYS, 3), "takes `rgb_sigma_fn` or `rgb_alpha_fn`, got neither"),
        (
            lambda: nerfacc.rendering(ALPHAS, ALPHAS, RAYS, 3, field(torch.rand(5, 3), ALPHAS[:, 0])),
            r"`rgb_sigma_fn` must return a tensor of shape \[5, 1\], got \[5\]",
        ),
        (
            lambda: nerfacc.rendering(ALPHAS, ALPHAS, RAYS, 3, field(torch.rand(5, 3), ALPHAS), render_bkgd=ALPHAS),
            r"`render_bkgd` must have shape \[3, 3\], got \[5, 1\]",
        ),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_by_name(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()

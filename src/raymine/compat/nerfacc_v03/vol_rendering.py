"""`nerfacc.vol_rendering`: volume rendering of packed samples.

Values of samples are columns (n_samples, 1). The rays of samples are given as `ray_indices` (n_samples,) or as
`packed_info` (n_rays, 2): first sample and number of samples of each ray. With `n_rays`, indices must ascend; without
it, each run of equal indices is a ray. The formulas are in `raymine.toolkit.volume`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from raymine.compat.nerfacc.volrend import accumulate_along_rays as accumulate_flat
from raymine.compat.nerfacc_v03._arguments import (
    check_range,
    columns,
    floating,
    indices,
    pack_for,
    returned,
    whole,
)
from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.toolkit import volume
from raymine.toolkit.pack import Pack

RadianceFn = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""t_starts, t_ends (n, 1), ray_indices (n,) -> colours (n, 3) and densities or opacities (n, 1)."""


def rendering(
    t_starts: Tensor,
    t_ends: Tensor,
    ray_indices: Tensor,
    n_rays: int,
    rgb_sigma_fn: RadianceFn | None = None,
    rgb_alpha_fn: RadianceFn | None = None,
    render_bkgd: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Render rays: colours (n_rays, 3), opacities (n_rays, 1) and depths (n_rays, 1).

    The field is called once, with t_starts, t_ends and ray_indices. It returns colours (n_samples, 3) and densities
    (rgb_sigma_fn) or opacities (rgb_alpha_fn) (n_samples, 1); if both are given, rgb_sigma_fn is used. Depths are sums
    of weight * distance; they are not divided by the opacity. render_bkgd: colour (3,) or (n_rays, 3); None means
    black. Differentiable in the outputs of the field and in the background.
    """
    start, end = columns(t_starts=t_starts, t_ends=t_ends)
    pack = pack_for(start, None, ray_indices, whole("n_rays", n_rays))
    field, name = _field(rgb_sigma_fn, rgb_alpha_fn)
    rgbs, values = _ask(field, name, t_starts, t_ends, ray_indices)
    if rgb_sigma_fn is not None:
        weights = volume.weights_from_density(start, end, values, pack).weights
    else:
        weights = volume.weights_from_alpha(values, pack).weights
    return _composite(weights, rgbs, (start + end) / 2, pack, render_bkgd)


def accumulate_along_rays(
    weights: Tensor, ray_indices: Tensor, values: Tensor | None = None, n_rays: int | None = None
) -> Tensor:
    """Sums of weight * value along rays, (n_rays, D). Without values, the sums of the weights, with D = 1.

    weights: (n_samples, 1). ray_indices: (n_samples,), in any order. values: (n_samples, D). n_rays: without it, the
    largest index plus one, which waits for the device. Differentiable in weights and values.
    """
    (flat,) = columns(weights=weights)
    return _accumulate(flat, ray_indices, values, n_rays)


def render_transmittance_from_density(
    t_starts: Tensor,
    t_ends: Tensor,
    sigmas: Tensor,
    *,
    packed_info: Tensor | None = None,
    ray_indices: Tensor | None = None,
    n_rays: int | None = None,
) -> Tensor:
    """Transmittances (n_samples, 1) before samples with densities sigmas (n_samples, 1). Differentiable."""
    start, end, density = columns(t_starts=t_starts, t_ends=t_ends, sigmas=sigmas)
    pack = pack_for(density, packed_info, ray_indices, n_rays)
    return volume.transmittance_from_density(start, end, density, pack)[:, None]


def render_transmittance_from_alpha(
    alphas: Tensor,
    *,
    packed_info: Tensor | None = None,
    ray_indices: Tensor | None = None,
    n_rays: int | None = None,
) -> Tensor:
    """Transmittances (n_samples, 1) before samples with opacities alphas (n_samples, 1). Differentiable."""
    (alpha,) = columns(alphas=alphas)
    return volume.transmittance_from_alpha(alpha, pack_for(alpha, packed_info, ray_indices, n_rays))[:, None]


def render_weight_from_density(
    t_starts: Tensor,
    t_ends: Tensor,
    sigmas: Tensor,
    *,
    packed_info: Tensor | None = None,
    ray_indices: Tensor | None = None,
    n_rays: int | None = None,
) -> Tensor:
    """Weights (n_samples, 1) of samples with densities sigmas (n_samples, 1). Differentiable."""
    start, end, density = columns(t_starts=t_starts, t_ends=t_ends, sigmas=sigmas)
    pack = pack_for(density, packed_info, ray_indices, n_rays)
    return volume.weights_from_density(start, end, density, pack).weights[:, None]


def render_weight_from_alpha(
    alphas: Tensor,
    *,
    packed_info: Tensor | None = None,
    ray_indices: Tensor | None = None,
    n_rays: int | None = None,
) -> Tensor:
    """Weights (n_samples, 1) of samples with opacities alphas (n_samples, 1). Differentiable."""
    (alpha,) = columns(alphas=alphas)
    return volume.weights_from_alpha(alpha, pack_for(alpha, packed_info, ray_indices, n_rays)).weights[:, None]


@torch.no_grad()
def render_visibility(
    alphas: Tensor,
    *,
    ray_indices: Tensor | None = None,
    packed_info: Tensor | None = None,
    n_rays: int | None = None,
    early_stop_eps: float = 1e-4,
    alpha_thre: float = 0.0,
) -> Tensor:
    """(n_samples,) bool: transmittance >= early_stop_eps and, if alpha_thre > 0, opacity >= alpha_thre.

    alphas: (n_samples, 1). Not differentiable.
    """
    (alpha,) = columns(alphas=alphas)
    checks.numbers(early_stop_eps=early_stop_eps, alpha_thre=alpha_thre)
    pack = pack_for(alpha, packed_info, ray_indices, n_rays)
    return volume.visible_from_alpha(alpha, pack, stop=early_stop_eps, faint=alpha_thre)


def _field(rgb_sigma_fn: RadianceFn | None, rgb_alpha_fn: RadianceFn | None) -> tuple[RadianceFn, str]:
    """The field that is used, and the name of its argument."""
    if rgb_sigma_fn is not None:
        return rgb_sigma_fn, "rgb_sigma_fn"
    if rgb_alpha_fn is not None:
        return rgb_alpha_fn, "rgb_alpha_fn"
    raise ConfigError("`rendering` takes `rgb_sigma_fn` or `rgb_alpha_fn`, got neither.")


def _ask(field: RadianceFn, name: str, t_starts: Tensor, t_ends: Tensor, ray_indices: Tensor) -> tuple[Tensor, Tensor]:
    """Colours (n, 3) and densities or opacities (n,)."""
    rgbs, values = field(t_starts, t_ends, ray_indices)
    n = len(t_starts)
    return returned(name, rgbs, (n, 3), t_starts), returned(name, values, (n, 1), t_starts)[:, 0]


def _composite(
    weights: Tensor, rgbs: Tensor, middle: Tensor, pack: Pack, render_bkgd: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Colours, opacities and depths of rays from weights (n,), rgbs (n, 3) and distances (n,)."""
    parts = torch.cat((rgbs, middle[:, None], torch.ones_like(middle)[:, None]), -1)
    colours, depths, opacities = volume.accumulate(weights, parts, pack).split((3, 1, 1), -1)
    if render_bkgd is not None:
        rows = 1 if render_bkgd.ndim == 2 and len(render_bkgd) == 1 else pack.n_rays
        floating("render_bkgd", render_bkgd, (3,) if render_bkgd.ndim == 1 else (rows, 3), colours)
        colours = colours + render_bkgd * (1.0 - opacities)
    return colours, opacities, depths


def _accumulate(flat: Tensor, ray_indices: Tensor, values: Tensor | None, n_rays: int | None) -> Tensor:
    ray_indices = indices(ray_indices, len(flat), flat)
    if values is not None:
        floating("values", values, (len(flat), values.shape[1] if values.ndim > 1 else 0), flat)
    if n_rays is None:
        if not len(flat):
            raise ConfigError("`n_rays` must be given where there are no samples.")
        n_rays = int(ray_indices.max()) + 1
    n_rays = whole("n_rays", n_rays)
    check_range(ray_indices, n_rays)
    return accumulate_flat(flat, values, ray_indices, n_rays)

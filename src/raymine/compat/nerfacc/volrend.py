"""`nerfacc.volrend`: volume rendering over batched or flat samples.

Batched samples are [R, n]. Flat samples [B] need `packed_info` [R, 2] (first sample and count of each ray) or
`ray_indices` [B]. With `n_rays`, indices must ascend; without it, each run of equal indices is a ray. `prefix_trans`,
in the shape of the samples, is the transmittance of each sample's ray before its first sample. The formulas are in
`raymine.toolkit.volume`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from raymine.compat.nerfacc.pack import _pack_of
from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.toolkit import volume


def rendering(
    t_starts: Tensor,
    t_ends: Tensor,
    ray_indices: Tensor | None = None,
    n_rays: int | None = None,
    rgb_sigma_fn: Callable[..., tuple[Tensor, Tensor]] | None = None,
    rgb_alpha_fn: Callable[..., tuple[Tensor, Tensor]] | None = None,
    render_bkgd: Tensor | None = None,
    expected_depths: bool = True,
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Render rays: colours [R, 3], opacities [R, 1], depths [R, 1] and a dict of values per sample.

    The field is called with t_starts, t_ends and ray_indices. It returns colours and densities (rgb_sigma_fn) or
    colours and opacities (rgb_alpha_fn); if both are given, rgb_sigma_fn is used. render_bkgd: background colour [3] or
    [R, 3]; None means black. expected_depths: whether depths are divided by the opacities. Differentiable in the
    outputs of the field and in the background.
    """
    if ray_indices is not None:
        if not t_starts.shape == t_ends.shape == ray_indices.shape:
            raise ConfigError(
                f"`t_starts`, `t_ends` and `ray_indices` must have one shape [B], got {list(t_starts.shape)}, "
                f"{list(t_ends.shape)} and {list(ray_indices.shape)}."
            )
        if n_rays is None:
            raise ConfigError(
                "`rendering` needs `n_rays` with `ray_indices`: rays without samples are results as well."
            )
    pack = _pack_of(None, ray_indices, n_rays)

    if rgb_sigma_fn is not None:
        rgb_alpha_fn = None
    elif rgb_alpha_fn is None:
        raise ConfigError("`rendering` takes `rgb_sigma_fn` or `rgb_alpha_fn`, got neither.")
    colours, opacities, depths, extras = volume.rendering(
        t_starts, t_ends, pack, rgb_sigma_fn=rgb_sigma_fn, rgb_alpha_fn=rgb_alpha_fn, background=render_bkgd,
        ray_id=ray_indices,
    )  # fmt: skip
    if not expected_depths:
        depths = volume.accumulate(extras["weights"], ((t_starts + t_ends) / 2)[..., None], pack)
    return colours, opacities, depths, extras


def render_transmittance_from_alpha(
    alphas: Tensor,
    packed_info: Tensor | None = None,
    ray_indices: Tensor | None = None,
    n_rays: int | None = None,
    prefix_trans: Tensor | None = None,
) -> Tensor:
    """Transmittances in the shape of `alphas`. Differentiable, also where an opacity is 1."""
    return volume.transmittance_from_alpha(alphas, _pack_of(packed_info, ray_indices, n_rays), prefix_trans)


def render_transmittance_from_density(
    t_starts: Tensor,
    t_ends: Tensor,
    sigmas: Tensor,
    packed_info: Tensor | None = None,
    ray_indices: Tensor | None = None,
    n_rays: int | None = None,
    prefix_trans: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Transmittances and opacities in the shape of `sigmas`. Differentiable."""
    pack = _pack_of(packed_info, ray_indices, n_rays)
    _, through, alpha = volume.weights_from_density(t_starts, t_ends, sigmas, pack, prefix_trans)
    return through, alpha


def render_weight_from_alpha(
    alphas: Tensor,
    packed_info: Tensor | None = None,
    ray_indices: Tensor | None = None,
    n_rays: int | None = None,
    prefix_trans: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Weights and transmittances in the shape of `alphas`. Differentiable."""
    weights, through, _ = volume.weights_from_alpha(alphas, _pack_of(packed_info, ray_indices, n_rays), prefix_trans)
    return weights, through


def render_weight_from_density(
    t_starts: Tensor,
    t_ends: Tensor,
    sigmas: Tensor,
    packed_info: Tensor | None = None,
    ray_indices: Tensor | None = None,
    n_rays: int | None = None,
    prefix_trans: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, transmittances and opacities in the shape of `sigmas`. Differentiable."""
    pack = _pack_of(packed_info, ray_indices, n_rays)
    weights, through, alpha = volume.weights_from_density(t_starts, t_ends, sigmas, pack, prefix_trans)
    return weights, through, alpha


@torch.no_grad()
def render_visibility_from_alpha(
    alphas: Tensor,
    packed_info: Tensor | None = None,
    ray_indices: Tensor | None = None,
    n_rays: int | None = None,
    early_stop_eps: float = 1e-4,
    alpha_thre: float = 0.0,
    prefix_trans: Tensor | None = None,
) -> Tensor:
    """Bool in the shape of `alphas`: transmittance >= early_stop_eps and, if alpha_thre > 0, opacity >= alpha_thre.

    Not differentiable.
    """
    pack = _pack_of(packed_info, ray_indices, n_rays)
    return volume.visible_from_alpha(alphas, pack, prefix_trans, stop=early_stop_eps, faint=alpha_thre)


@torch.no_grad()
def render_visibility_from_density(
    t_starts: Tensor,
    t_ends: Tensor,
    sigmas: Tensor,
    packed_info: Tensor | None = None,
    ray_indices: Tensor | None = None,
    n_rays: int | None = None,
    early_stop_eps: float = 1e-4,
    alpha_thre: float = 0.0,
    prefix_trans: Tensor | None = None,
) -> Tensor:
    """Bool in the shape of `sigmas`: transmittance >= early_stop_eps and, if alpha_thre > 0, opacity >= alpha_thre.

    Not differentiable.
    """
    pack = _pack_of(packed_info, ray_indices, n_rays)
    return volume.visible_from_density(
        t_starts, t_ends, sigmas, pack, prefix_trans, stop=early_stop_eps, faint=alpha_thre
    )


def accumulate_along_rays(
    weights: Tensor, values: Tensor | None = None, ray_indices: Tensor | None = None, n_rays: int | None = None
) -> Tensor:
    """Sums of weight * value along rays, [R, D]. Without values, the sums of the weights, with D = 1.

    Batched: weights [R, n], values [R, n, D]. Flat: weights [B], values [B, D], with ray_indices [B] in any order.
    Differentiable in weights and values.
    """
    if ray_indices is None:
        return volume.accumulate(weights, values)
    if n_rays is None:
        raise ConfigError("`accumulate_along_rays` needs `n_rays` with `ray_indices`.")
    parts = _parts(weights, values, ray_indices)
    checks.whole(n_rays=n_rays)
    ray_indices = checks.within("ray_indices", ray_indices, n_rays, parts.device)
    return parts.new_zeros(n_rays, parts.shape[1]).index_add(0, ray_indices, parts)


def accumulate_along_rays_(
    weights: Tensor,
    values: Tensor | None = None,
    ray_indices: Tensor | None = None,
    outputs: Tensor | None = None,
) -> None:
    """As `accumulate_along_rays`, but adds the sums to `outputs` [R, D] in place."""
    if outputs is None:
        raise ConfigError("`accumulate_along_rays_` needs `outputs` [R, D] to add to.")
    if ray_indices is None:
        outputs.add_(volume.accumulate(weights, values))
        return
    parts = _parts(weights, values, ray_indices)
    if outputs.ndim != 2 or outputs.shape[1] != parts.shape[1]:
        raise ConfigError(f"`outputs` must have shape [R, {parts.shape[1]}], got {list(outputs.shape)}.")
    checks.reals(outputs=outputs, weights=parts)
    checks.inplace(outputs=outputs)
    ray_indices = checks.within("ray_indices", ray_indices, len(outputs), parts.device)
    outputs.index_add_(0, ray_indices, parts.to(outputs.dtype))


def _parts(weights: Tensor, values: Tensor | None, ray_indices: Tensor) -> Tensor:
    """[B, D]: weight * value of flat samples."""
    checks.together(weights=weights, values=values, ray_indices=ray_indices)
    if weights.ndim != 1 or ray_indices.shape != weights.shape:
        raise ConfigError(
            f"`weights` and `ray_indices` must have one shape [B], got {list(weights.shape)} and "
            f"{list(ray_indices.shape)}."
        )
    if values is None:
        return weights[:, None]
    if values.ndim != 2 or len(values) != len(weights):
        raise ConfigError(f"`values` must have shape [{len(weights)}, D], got {list(values.shape)}.")
    return weights[:, None] * values

"""Volume rendering in parts: opacities, transmittances, weights, visibility and sums along rays.

Symbols, for sample i of a ray with density s_i over an interval of length d_i:

    a_i = 1 - exp(-s_i d_i)                 opacity of the interval
    T_i = exp(-sum of s_j d_j over j < i)   transmittance up to it, which is the product of (1 - a_j) over j < i
    w_i = T_i a_i                           weight of the sample

Packed: tensors [B] with a `Pack`. Batched: tensors [..., n], a ray along the last dimension. Everything is
differentiable but visibility. Nothing is clamped: a negative density or an opacity above 1 does what the formulas say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.toolkit.pack import Pack
from raymine.toolkit.scan import running_product, running_sum

Radiance = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""t_start, t_end [B], ray ids [B] (None where batched) -> colours [B, 3] and densities or opacities [B]."""


class Weights(NamedTuple):
    """w_i, T_i and a_i, each in the shape of the samples."""

    weights: Tensor
    transmittance: Tensor
    alphas: Tensor


def alphas(t_start: Tensor, t_end: Tensor, density: Tensor) -> Tensor:
    """a_i, with all its digits where it is small. An infinite density gives 1, but 0 in an interval of length 0."""
    return -torch.expm1(-_optical(t_start, t_end, density)).to(_kind(t_start, t_end, density))


def transmittance_from_density(
    t_start: Tensor, t_end: Tensor, density: Tensor, pack: Pack | None = None, prefix: Tensor | None = None
) -> Tensor:
    """T_i. prefix, in the shape of the samples: what reaches each sample's ray from before its first sample."""
    return weights_from_density(t_start, t_end, density, pack, prefix).transmittance


def transmittance_from_alpha(alpha: Tensor, pack: Pack | None = None, prefix: Tensor | None = None) -> Tensor:
    """T_i as a product; its gradient is right where an opacity is 1."""
    _check_flat("alpha", alpha, pack)
    wide = alpha.to(torch.promote_types(alpha.dtype, torch.float32))
    return _after(running_product(1 - wide, pack, exclusive=True).to(alpha.dtype), pack, prefix)


def weights_from_density(
    t_start: Tensor, t_end: Tensor, density: Tensor, pack: Pack | None = None, prefix: Tensor | None = None
) -> Weights:
    """Weights, transmittances and opacities of samples; `prefix` as above."""
    optical = _optical(t_start, t_end, density)
    _check_flat("density", optical, pack)
    kind = _kind(t_start, t_end, density)
    # A sum of what lies in front and never a difference, so that samples behind an opaque one get 0 and no rounding.
    through = _after(torch.exp(-running_sum(optical, pack, exclusive=True)).to(kind), pack, prefix)
    alpha = -torch.expm1(-optical).to(kind)
    return Weights(through * alpha, through, alpha)


def weights_from_alpha(alpha: Tensor, pack: Pack | None = None, prefix: Tensor | None = None) -> Weights:
    """Weights, transmittances and the given opacities; `prefix` as above."""
    through = transmittance_from_alpha(alpha, pack, prefix)
    return Weights(through * alpha, through, alpha)


@torch.no_grad()
def visible_from_density(
    t_start: Tensor,
    t_end: Tensor,
    density: Tensor,
    pack: Pack | None = None,
    prefix: Tensor | None = None,
    *,
    stop: float = 1e-4,
    faint: float = 0.0,
) -> Tensor:
    """Bool, in the shape of the samples: T_i >= stop and, where `faint` is above 0, a_i >= faint.

    NaN counts as visible, so that what is broken is not quietly left out. Not differentiable.
    """
    _, through, alpha = weights_from_density(t_start, t_end, density, pack, prefix)
    return _visible(through, alpha, stop, faint)


@torch.no_grad()
def visible_from_alpha(
    alpha: Tensor, pack: Pack | None = None, prefix: Tensor | None = None, *, stop: float = 1e-4, faint: float = 0.0
) -> Tensor:
    """As `visible_from_density`, from opacities."""
    return _visible(transmittance_from_alpha(alpha, pack, prefix), alpha, stop, faint)


def accumulate(weights: Tensor, values: Tensor | None = None, pack: Pack | None = None) -> Tensor:
    """Sums of weight times value along rays: weights [B], values [B, D] -> [R, D], or [..., n, D] -> [..., D].

    Without values the sums of the weights, D = 1. A ray without samples gets 0. Differentiable in both; the order of
    the sums does not depend on what else runs, so that results repeat.
    """
    _check_flat("weights", weights, pack)
    if values is None:
        parts = weights[..., None]
    elif values.ndim != weights.ndim + 1 or values.shape[:-1] != weights.shape:
        raise ConfigError(f"`values` must have shape {[*weights.shape, 'D']}, got {list(values.shape)}.")
    else:
        parts = weights[..., None] * values
    if pack is None:
        return parts.sum(-2)
    if not len(parts):
        # Plus a sum over nothing, which keeps the graph: a step without samples goes backward like any other.
        return parts.new_zeros(pack.n_rays, parts.shape[1]) + parts.sum(0)
    last = (pack.first + pack.count - 1).clamp(0, len(parts) - 1)
    sums = running_sum(parts, pack).index_select(0, last)
    return torch.where((pack.count > 0)[:, None], sums, torch.zeros_like(sums))


def rendering(
    t_start: Tensor,
    t_end: Tensor,
    pack: Pack | None = None,
    *,
    rgb_sigma_fn: Radiance | None = None,
    rgb_alpha_fn: Radiance | None = None,
    background: Tensor | None = None,
    ray_id: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Render a radiance field that is asked once, for all samples: `Radiance` with densities or with opacities.

    t_start, t_end: [B] with a pack, [R, n] without. background: [3] or [R, 3], behind everything. ray_id: [B], for the
    field, where the caller knows what the pack says.
    Returns colours [R, 3], opacities [R, 1], depths [R, 1] (the mean distance of what was hit, 0 where nothing was)
    and what was found on the way, per sample: `weights`, `trans`, `alphas`, `rgbs`, and `sigmas` from densities.
    Differentiable in what the field returns and in the background. Without samples the field is not asked.
    """
    if (rgb_sigma_fn is None) == (rgb_alpha_fn is None):
        given = "neither" if rgb_sigma_fn is None else "both"
        raise ConfigError(f"`rendering` takes one of `rgb_sigma_fn` and `rgb_alpha_fn`, got {given}.")
    if t_start.shape != t_end.shape:
        raise ConfigError(f"`t_end` must have the shape of `t_start`, {list(t_start.shape)}, got {list(t_end.shape)}.")
    _check_flat("t_start", t_start, pack)
    field = rgb_sigma_fn or rgb_alpha_fn
    if field is not None and t_start.numel():
        if ray_id is None and pack is not None:
            ray_id = pack.ray_id(len(t_start))
        rgb, opaque = field(t_start, t_end, ray_id)
    else:
        rgb, opaque = t_start.new_zeros((*t_start.shape, 3)), torch.zeros_like(t_start)
    for name, got, shape in (("colours", rgb, [*t_start.shape, 3]), ("densities", opaque, [*t_start.shape])):
        if list(got.shape) != shape:
            what = name if rgb_sigma_fn is not None or name == "colours" else "opacities"
            raise ConfigError(f"The field must return {what} of shape {shape}, got {list(got.shape)}.")
    if rgb_sigma_fn is not None:
        found = weights_from_density(t_start, t_end, opaque, pack)
    else:
        found = weights_from_alpha(opaque, pack)
    extras = {"weights": found.weights, "trans": found.transmittance, "alphas": found.alphas, "rgbs": rgb}
    if rgb_sigma_fn is not None:
        extras["sigmas"] = opaque
    middle = ((t_start + t_end) / 2)[..., None]
    sums = accumulate(found.weights, torch.cat((rgb, middle, torch.ones_like(middle)), -1), pack)
    colours, depths, opacities = sums.split((3, 1, 1), -1)
    depths = depths / opacities.clamp_min(torch.finfo(rgb.dtype).eps)
    if background is not None:
        colours = colours + background * (1 - opacities)
    return colours, opacities, depths, extras


def _optical(t_start: Tensor, t_end: Tensor, density: Tensor) -> Tensor:
    """s_i d_i, in float32 at least. Infinite densities become the largest number, so that 0 times them is 0."""
    try:
        torch.broadcast_shapes(t_start.shape, t_end.shape, density.shape)
    except RuntimeError as error:
        raise ConfigError(
            f"`t_start`, `t_end` and `density` must have one shape, got {list(t_start.shape)}, {list(t_end.shape)} "
            f"and {list(density.shape)}."
        ) from error
    kind = torch.promote_types(_kind(t_start, t_end, density), torch.float32)
    return density.to(kind).clamp(max=torch.finfo(kind).max) * (t_end.to(kind) - t_start.to(kind))


def _kind(t_start: Tensor, t_end: Tensor, density: Tensor) -> torch.dtype:
    """The type of results."""
    return torch.promote_types(torch.promote_types(t_start.dtype, t_end.dtype), density.dtype)


def _check_flat(name: str, samples: Tensor, pack: Pack | None) -> None:
    if pack is not None and samples.ndim != 1:
        raise ConfigError(f"With a pack `{name}` must have shape [B], got {list(samples.shape)}.")


def _after(through: Tensor, pack: Pack | None, prefix: Tensor | None) -> Tensor:
    """Transmittances behind what `prefix` has let through."""
    if prefix is None:
        return through
    if pack is not None and prefix.shape != through.shape:
        raise ConfigError(
            f"`prefix` must have shape {list(through.shape)}, one for each sample, got {list(prefix.shape)}."
        )
    return through * prefix


def _visible(through: Tensor, alpha: Tensor, stop: float, faint: float) -> Tensor:
    seen = ~(through < stop)
    return seen & ~(alpha < faint) if faint > 0 else seen

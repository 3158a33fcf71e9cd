"""Volume rendering in parts: opacities, transmittances, weights, visibility and sums along rays.

Symbols, for sample i of a ray with density s_i over an interval of length d_i:

    a_i = 1 - exp(-s_i d_i)                 opacity of the interval
    T_i = exp(-sum of s_j d_j over j < i)   transmittance up to it, which is the product of (1 - a_j) over j < i
    w_i = T_i a_i                           weight of the sample

Packed: tensors [B] with a `Pack`. Batched: tensors [..., n], a ray along the last dimension. Everything except
visibility is differentiable. Nothing is clamped: the formulas also hold for negative densities and opacities above 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks, dispatch
from raymine.kernels.volume.op import volume as render_volume
from raymine.toolkit.pack import Pack
from raymine.toolkit.scan import running_product, running_sum

Radiance = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""t_start, t_end [B], ray ids [B] (None if batched) -> colours [B, 3] and densities or opacities [B]."""


class Weights(NamedTuple):
    """w_i, T_i and a_i of the module docstring, each in the shape of the samples."""

    weights: Tensor
    transmittance: Tensor
    alphas: Tensor


def alphas(t_start: Tensor, t_end: Tensor, density: Tensor) -> Tensor:
    """Opacities a_i in the shape of the samples, accurate also where they are small. Differentiable.

    density: in 1 / units of t. An infinite density gives 1, or 0 if the interval has length 0.
    """
    return -torch.expm1(-_optical(t_start, t_end, density)).to(_kind(t_start, t_end, density))


def transmittance_from_density(
    t_start: Tensor, t_end: Tensor, density: Tensor, pack: Pack | None = None, prefix: Tensor | None = None
) -> Tensor:
    """Transmittances T_i in the shape of the samples. Differentiable.

    density: in 1 / units of t. prefix, in the shape of the samples: the transmittance of each sample's ray before its
    first sample; None means 1.
    """
    return weights_from_density(t_start, t_end, density, pack, prefix).transmittance


def transmittance_from_alpha(alpha: Tensor, pack: Pack | None = None, prefix: Tensor | None = None) -> Tensor:
    """Transmittances T_i in the shape of `alpha`, as products of 1 - a_j. Differentiable, also where an opacity is 1.

    prefix: as in `transmittance_from_density`.
    """
    checks.alike(alpha=alpha, prefix=prefix)
    _check_flat("alpha", alpha, pack)
    wide = alpha.to(torch.promote_types(alpha.dtype, torch.float32))
    return _after(running_product(1 - wide, pack, exclusive=True).to(alpha.dtype), prefix)


def weights_from_density(
    t_start: Tensor, t_end: Tensor, density: Tensor, pack: Pack | None = None, prefix: Tensor | None = None
) -> Weights:
    """Weights, transmittances and opacities in the shape of the samples. Differentiable.

    density, prefix: as in `transmittance_from_density`.
    """
    if pack is not None:
        checks.alike(t_start=t_start, t_end=t_end, density=density)
    optical = _optical(t_start, t_end, density)
    checks.alike(density=optical, prefix=prefix)
    _check_flat("density", optical, pack)
    kind = _kind(t_start, t_end, density)
    # The exclusive sum is not computed as a difference, so T_i is exactly 0 behind an opaque sample.
    through = _after(torch.exp(-running_sum(optical, pack, exclusive=True)).to(kind), prefix)
    alpha = -torch.expm1(-optical).to(kind)
    return Weights(through * alpha, through, alpha)


def weights_from_alpha(alpha: Tensor, pack: Pack | None = None, prefix: Tensor | None = None) -> Weights:
    """Weights, transmittances and the given opacities, in the shape of `alpha`. Differentiable.

    prefix: as in `transmittance_from_density`.
    """
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
    """Bool in the shape of the samples: T_i >= stop and, if faint > 0, a_i >= faint. Not differentiable.

    density, prefix: as in `transmittance_from_density`. NaN counts as visible, so that errors are not hidden.
    """
    checks.numbers(stop=stop, faint=faint)
    _, through, alpha = weights_from_density(t_start, t_end, density, pack, prefix)
    return _visible(through, alpha, stop, faint)


@torch.no_grad()
def visible_from_alpha(
    alpha: Tensor, pack: Pack | None = None, prefix: Tensor | None = None, *, stop: float = 1e-4, faint: float = 0.0
) -> Tensor:
    """As `visible_from_density`, from opacities in 0..1."""
    checks.numbers(stop=stop, faint=faint)
    return _visible(transmittance_from_alpha(alpha, pack, prefix), alpha, stop, faint)


def accumulate(weights: Tensor, values: Tensor | None = None, pack: Pack | None = None) -> Tensor:
    """Sums of weight * value along rays. Differentiable in both.

    Packed: weights [B], values [B, D] -> [R, D]. Batched: weights [..., n], values [..., n, D] -> [..., D]. Without
    values, the sums of the weights, with D = 1. A ray without samples gets 0. The order of the sums is fixed, so
    results are reproducible.
    """
    _check_flat("weights", weights, pack)
    checks.together(weights=weights, values=values)
    if not weights.ndim:
        raise ConfigError("`weights` must have shape [..., n], got a single number.")
    if values is None:
        parts = weights[..., None]
    elif values.ndim != weights.ndim + 1 or values.shape[:-1] != weights.shape:
        raise ConfigError(f"`values` must have shape {[*weights.shape, 'D']}, got {list(values.shape)}.")
    else:
        parts = weights[..., None] * values
    if pack is None:
        return parts.sum(-2)
    pack = Pack(*checks.ranges(*pack, len(parts), parts.device))
    if not len(parts):
        # Adding an empty sum keeps the result in the graph, so that `backward` works in a step without samples.
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
    """Render a radiance field. The field is called once, for all samples.

    t_start, t_end: [B] with a pack, [R, n] without. rgb_sigma_fn, rgb_alpha_fn: the field, exactly one of them; it
    returns densities or opacities (see `Radiance`). background: [3] or [R, 3]; None means black. ray_id: [B], passed to
    the field; None: computed from the pack.
    Returns colours [R, 3], opacities [R, 1], depths [R, 1] (the weighted mean distance, 0 where the opacity is 0) and a
    dict of values per sample: `weights`, `trans`, `alphas`, `rgbs`, and with densities `sigmas`.
    Differentiable in the outputs of the field and in the background. The field is not called if there are no samples.
    """
    if (rgb_sigma_fn is None) == (rgb_alpha_fn is None):
        given = "neither" if rgb_sigma_fn is None else "both"
        raise ConfigError(f"`rendering` takes one of `rgb_sigma_fn` and `rgb_alpha_fn`, got {given}.")
    checks.alike(t_start=t_start, t_end=t_end)
    _check_flat("t_start", t_start, pack)
    if pack is not None:
        pack = Pack(*checks.pack(*pack, len(t_start), t_start.device))
    field = rgb_sigma_fn or rgb_alpha_fn
    if field is not None and t_start.numel():
        if ray_id is None and pack is not None:
            ray_id = pack.ray_id(len(t_start))
        rgb, opaque = field(t_start, t_end, ray_id)
    else:
        rgb, opaque = t_start.new_zeros((*t_start.shape, 3)), torch.zeros_like(t_start)
    for name, got, shape in (("colours", rgb, [*t_start.shape, 3]), ("densities", opaque, [*t_start.shape])):
        what = name if rgb_sigma_fn is not None or name == "colours" else "opacities"
        if list(got.shape) != shape:
            raise ConfigError(f"The field must return {what} of shape {shape}, got {list(got.shape)}.")
        if not got.is_floating_point() or got.device != t_start.device:
            raise ConfigError(
                f"The field must return {what} in floating point on {t_start.device}, got {got.dtype} on {got.device}."
            )
    rays = (pack.n_rays,) if pack is not None else t_start.shape[:-1]
    if background is not None:
        checks.reals(t_start=t_start, background=background)
        if background.shape not in ((3,), (*rays, 3)):
            raise ConfigError(f"`background` must have shape [3] or {[*rays, 3]}, got {list(background.shape)}.")
    if rgb_sigma_fn is not None and _has_kernel(t_start, t_end, pack, opaque, rgb, background):
        colours, opacities, depths, found = _by_kernel(t_start, t_end, pack, opaque, rgb, background)
    else:
        if rgb_sigma_fn is not None:
            found = weights_from_density(t_start, t_end, opaque, pack)
        else:
            found = weights_from_alpha(opaque, pack)
        middle = ((t_start + t_end) / 2)[..., None]
        sums = accumulate(found.weights, torch.cat((rgb, middle, torch.ones_like(middle)), -1), pack)
        colours, depths, opacities = sums.split((3, 1, 1), -1)
        if background is not None:
            colours = colours + background * (1 - opacities)
    extras = {"weights": found.weights, "trans": found.transmittance, "alphas": found.alphas, "rgbs": rgb}
    if rgb_sigma_fn is not None:
        extras["sigmas"] = opaque
    return colours, opacities, depths / opacities.clamp_min(torch.finfo(rgb.dtype).eps), extras


def _has_kernel(
    t_start: Tensor, t_end: Tensor, pack: Pack | None, density: Tensor, rgb: Tensor, background: Tensor | None
) -> bool:
    """Whether the op `volume` can render these samples on a GPU, in one kernel instead of some twenty."""
    given = [part for part in (t_start, t_end, density, rgb, background) if part is not None]
    return (
        t_start.ndim == (2 if pack is None else 1)
        and t_start.numel() > 0
        and all(part.dtype == torch.float32 for part in given)
        and not (t_start.requires_grad or t_end.requires_grad)
        and dispatch.has_gpu_kernel("volume", t_start.device)
    )


def _by_kernel(
    t_start: Tensor, t_end: Tensor, pack: Pack | None, density: Tensor, rgb: Tensor, background: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Weights]:
    """Colours [R, 3], opacities [R, 1], sums of weight * distance [R, 1], and the parts of samples, by one kernel."""
    shape = t_start.shape
    if pack is None:
        rays, n = shape
        first = torch.arange(rays, device=t_start.device) * n
        pack = Pack(first, torch.full_like(first, n))
        t_start, t_end, density, rgb = t_start.flatten(), t_end.flatten(), density.flatten(), rgb.reshape(-1, 3)
    out = render_volume(density, rgb, t_start, t_end, pack, background)
    parts = Weights(*(part.view(shape) for part in out[3:]))
    return out.colour, out.opacity[:, None], out.depth[:, None], parts


def _optical(t_start: Tensor, t_end: Tensor, density: Tensor) -> Tensor:
    """s_i d_i, in float32 or float64. Infinite densities become the largest finite number, so that 0 * inf gives 0."""
    checks.joined(t_start=t_start, t_end=t_end, density=density)
    kind = torch.promote_types(_kind(t_start, t_end, density), torch.float32)
    return density.to(kind).clamp(max=torch.finfo(kind).max) * (t_end.to(kind) - t_start.to(kind))


def _kind(t_start: Tensor, t_end: Tensor, density: Tensor) -> torch.dtype:
    """The common type of the arguments, which results have too."""
    return torch.promote_types(torch.promote_types(t_start.dtype, t_end.dtype), density.dtype)


def _check_flat(name: str, samples: Tensor, pack: Pack | None) -> None:
    if pack is not None and samples.ndim != 1:
        raise ConfigError(f"With a pack `{name}` must have shape [B], got {list(samples.shape)}.")


def _after(through: Tensor, prefix: Tensor | None) -> Tensor:
    """Transmittances times `prefix`, the transmittance before the first sample."""
    return through if prefix is None else through * prefix


def _visible(through: Tensor, alpha: Tensor, stop: float, faint: float) -> Tensor:
    seen = ~(through < stop)
    return seen & ~(alpha < faint) if faint > 0 else seen

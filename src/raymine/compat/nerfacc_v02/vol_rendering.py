"""`nerfacc.vol_rendering`: volume rendering of packed samples.

The rays of samples are given as `packed_info` (n_rays, 2): first sample and number of samples of each ray. A sample of
no ray gets weight 0. A ray ends where its transmittance falls below `early_stop_eps`; samples with an opacity below
`alpha_thre` count as empty. With these, for sample i of a ray

    w_i = T_i a_i   where T_i >= early_stop_eps and a_i >= alpha_thre, else 0
    T_i = product of (1 - a_j) over j < i with a_j >= alpha_thre
"""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.compat.nerfacc_v03._arguments import columns, floating, packed
from raymine.compat.nerfacc_v03.vol_rendering import RadianceFn, _accumulate, _ask, _composite, _field
from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.toolkit import volume
from raymine.toolkit.pack import Pack, pack_counts


def rendering(
    packed_info: Tensor,
    t_starts: Tensor,
    t_ends: Tensor,
    rgb_sigma_fn: RadianceFn | None = None,
    rgb_alpha_fn: RadianceFn | None = None,
    early_stop_eps: float = 1e-4,
    alpha_thre: float = 0.0,
    render_bkgd: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Render rays: colours (n_rays, 3), opacities (n_rays, 1) and depths (n_rays, 1).

    t_starts, t_ends: (n_samples, 1). The field is called once, with t_starts, t_ends and ray indices (n_samples,). It
    returns colours (n_samples, 3) and densities (rgb_sigma_fn) or opacities (rgb_alpha_fn) (n_samples, 1). Depths are
    sums of weight * distance. render_bkgd: colour (3,) or (n_rays, 3); None means black. Differentiable in the outputs
    of the field and in the background.
    """
    if callable(packed_info) and not isinstance(packed_info, Tensor):
        raise ConfigError(
            "`packed_info` is a function. Since nerfacc 0.2.2 the field is the argument `rgb_sigma_fn`: "
            "`rendering(packed_info, t_starts, t_ends, rgb_sigma_fn=...)`."
        )
    start, end = columns(t_starts=t_starts, t_ends=t_ends)
    pack = Pack(*checks.pack(*packed(packed_info, start), len(start), start.device))
    field, name = _field(rgb_sigma_fn, rgb_alpha_fn)
    rgbs, values = _ask(field, name, t_starts, t_ends, pack_counts(pack.count).ray_id(len(start)))
    alphas = volume.alphas(start, end, values) if rgb_sigma_fn is not None else values
    weights, _ = _weights(alphas, pack, early_stop_eps, alpha_thre)
    return _composite(weights, rgbs, (start + end) / 2, pack, render_bkgd)


def accumulate_along_rays(
    weights: Tensor, ray_indices: Tensor, values: Tensor | None = None, n_rays: int | None = None
) -> Tensor:
    """Sums of weight * value along rays, (n_rays, D). Without values, the sums of the weights, with D = 1.

    weights, ray_indices: (n_samples,), rays in any order. values: (n_samples, D). n_rays: without it, the largest index
    plus one, which waits for the device. Differentiable in weights and values.
    """
    n = weights.shape[0] if isinstance(weights, Tensor) and weights.ndim else 0
    floating("weights", weights, (n,), weights)
    return _accumulate(weights, ray_indices, values, n_rays)


def render_weight_from_density(
    packed_info: Tensor,
    t_starts: Tensor,
    t_ends: Tensor,
    sigmas: Tensor,
    early_stop_eps: float = 1e-4,
    alpha_thre: float = 0.0,
) -> Tensor:
    """Weights (n_samples,) of samples with densities sigmas (n_samples, 1). Differentiable."""
    start, end, density = columns(t_starts=t_starts, t_ends=t_ends, sigmas=sigmas)
    pack = packed(packed_info, density)
    return _weights(volume.alphas(start, end, density), pack, early_stop_eps, alpha_thre)[0]


def render_weight_from_alpha(
    packed_info: Tensor, alphas: Tensor, early_stop_eps: float = 1e-4, alpha_thre: float = 0.0
) -> Tensor:
    """Weights (n_samples,) of samples with opacities alphas (n_samples, 1). Differentiable."""
    (alpha,) = columns(alphas=alphas)
    return _weights(alpha, packed(packed_info, alpha), early_stop_eps, alpha_thre)[0]


@torch.no_grad()
def render_visibility(
    packed_info: Tensor, alphas: Tensor, early_stop_eps: float = 1e-4, alpha_thre: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Which samples are visible, (n_samples,) bool, and the packed_info (n_rays, 2) int32 of these alone.

    Visible are the samples whose weight is not set to 0. alphas: (n_samples, 1). Not differentiable.
    """
    (alpha,) = columns(alphas=alphas)
    pack = packed(packed_info, alpha)
    _, seen = _weights(alpha, pack, early_stop_eps, alpha_thre)
    upto = torch.cat((pack.first.new_zeros(1), seen.cumsum(0)))
    first = pack.first.clamp(0, len(seen))
    count = upto[(first + pack.count).clamp(0, len(seen))] - upto[first]
    return seen, torch.stack(pack_counts(torch.where(pack.count > 0, count, 0)), -1).int()


def _weights(alpha: Tensor, pack: Pack, early_stop_eps: float, alpha_thre: float) -> tuple[Tensor, Tensor]:
    """Weights (n,) of the module docstring, and whether each sample counts (n,) bool."""
    checks.numbers(early_stop_eps=early_stop_eps, alpha_thre=alpha_thre)
    empty = alpha < alpha_thre
    alpha = torch.where(empty, torch.zeros_like(alpha), alpha)
    through = volume.transmittance_from_alpha(alpha, pack)
    # A ray adds 1 at its first sample and subtracts it behind its last: the running sum is 0 where there is no ray.
    n, some = len(alpha), (pack.count > 0).long()
    change = some.new_zeros(n + 1).index_add_(0, pack.first.clamp(0, n), some)
    change.index_add_(0, (pack.first + pack.count).clamp(0, n), -some)
    seen = (change.cumsum(0)[:-1] > 0) & ~(through < early_stop_eps) & ~empty
    # Masked before the product: the transmittance of a sample without a ray is NaN, also in the gradient.
    return torch.where(seen, through, torch.zeros_like(through)) * alpha, seen

"""`nerfacc.ray_marching`: samples along rays, in occupied cells and where a field is visible."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.compat.nerfacc_v03.ray_marching import FieldFn, MarchedGrid, _bounds, _flat, _place
from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.kernels.traverse.op import Stride
from raymine.toolkit import volume
from raymine.toolkit.occupancy import keep_visible


@torch.no_grad()
def ray_marching(
    rays_o: Tensor,
    rays_d: Tensor,
    t_min: Tensor | None = None,
    t_max: Tensor | None = None,
    scene_aabb: Tensor | None = None,
    grid: MarchedGrid | None = None,
    sigma_fn: FieldFn | None = None,
    alpha_fn: FieldFn | None = None,
    early_stop_eps: float = 1e-4,
    alpha_thre: float = 0.0,
    near_plane: float | None = None,
    far_plane: float | None = None,
    render_step_size: float = 1e-3,
    stratified: bool = False,
    cone_angle: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """packed_info (n_rays, 2) int32, t_starts and t_ends (n_samples, 1) of samples along rays. Not differentiable.

    Arguments as in 0.3. Samples with an opacity below alpha_thre are left out, and do not reduce the transmittance of
    those behind them.
    """
    if sigma_fn is not None and alpha_fn is not None:
        raise ConfigError("`sigma_fn` and `alpha_fn` were both given. Pass one of them.")
    checks.numbers(early_stop_eps=early_stop_eps, alpha_thre=alpha_thre)
    bounds = _bounds(rays_o, rays_d, t_min, t_max, scene_aabb, (near_plane, far_plane))
    samples = _place(rays_o, rays_d, bounds, grid, Stride(render_step_size, cone_angle), stratified)
    field = _flat("sigma_fn", sigma_fn) if sigma_fn is not None else None
    field = _flat("alpha_fn", alpha_fn) if alpha_fn is not None else field
    if field is not None and (early_stop_eps > 0 or alpha_thre > 0):
        found = field

        def opacity(t_start: Tensor, t_end: Tensor, ray: Tensor) -> Tensor:
            value = found(t_start, t_end, ray)
            alpha = volume.alphas(t_start, t_end, value) if sigma_fn is not None else value
            return torch.where(alpha < alpha_thre, 0.0, alpha)

        samples = keep_visible(samples, opacity, early_stop_eps, alpha_thre, alpha=True)
    return torch.stack(samples.pack, -1).int(), samples.t_start[:, None], samples.t_end[:, None]

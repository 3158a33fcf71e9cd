"""`nerfacc.ray_marching`: samples along rays, in occupied cells and where a field is visible."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from raymine.compat.nerfacc_v03._arguments import floating, returned
from raymine.compat.nerfacc_v03.contraction import ContractionType
from raymine.compat.nerfacc_v03.grid import query_grid
from raymine.compat.nerfacc_v03.intersection import ray_aabb_intersect
from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.kernels.select.op import compact
from raymine.kernels.traverse.op import Grids, Stride
from raymine.toolkit.occupancy import AlongRays, keep_visible, place_samples
from raymine.toolkit.pack import Samples

FieldFn = Callable[[Tensor, Tensor, Tensor], Tensor]
"""t_starts, t_ends (n, 1), ray_indices (n,) -> density or opacity (n, 1), after activation."""

_FAR = 1e10
_PIECE = 1 << 22
"""Samples whose cells are looked up at a time, which bounds the memory."""


class MarchedGrid(Protocol):
    """What marching reads of a grid: its region (6,), its occupied cells (X, Y, Z) bool, and how it covers space."""

    @property
    def roi_aabb(self) -> Tensor: ...

    @property
    def binary(self) -> Tensor: ...

    @property
    def contraction_type(self) -> ContractionType: ...


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
    """ray_indices (n_samples,) int64, t_starts and t_ends (n_samples, 1) of samples along rays. Not differentiable.

    rays_o, rays_d: (n_rays, 3). A ray goes from t_min to t_max (n_rays,) if both are given, else through scene_aabb
    (6,), else from 0 to 1e10; near_plane and far_plane narrow that. A step at distance t has length
    max(render_step_size, cone_angle * t). It becomes a sample if its midpoint lies in an occupied cell of the grid.
    stratified: shift the samples of each ray by a random fraction of a step, from torch's generator.
    sigma_fn, alpha_fn: at most one, called once. Samples with a transmittance below early_stop_eps, or an opacity below
    alpha_thre, are left out.
    """
    if sigma_fn is not None and alpha_fn is not None:
        raise ConfigError("`sigma_fn` and `alpha_fn` were both given. Pass one of them.")
    checks.numbers(early_stop_eps=early_stop_eps, alpha_thre=alpha_thre)
    bounds = _bounds(rays_o, rays_d, t_min, t_max, scene_aabb, (near_plane, far_plane))
    samples = _place(rays_o, rays_d, bounds, grid, Stride(render_step_size, cone_angle), stratified)
    if early_stop_eps > 0 or alpha_thre > 0:
        if sigma_fn is not None:
            samples = keep_visible(samples, _flat("sigma_fn", sigma_fn), early_stop_eps, alpha_thre, alpha=False)
        elif alpha_fn is not None:
            samples = keep_visible(samples, _flat("alpha_fn", alpha_fn), early_stop_eps, alpha_thre, alpha=True)
    return samples.ray_id, samples.t_start[:, None], samples.t_end[:, None]


def _bounds(
    rays_o: Tensor,
    rays_d: Tensor,
    t_min: Tensor | None,
    t_max: Tensor | None,
    scene_aabb: Tensor | None,
    planes: tuple[float | None, float | None],
) -> tuple[Tensor, Tensor]:
    """Where rays begin and end, (n_rays,) each, as `ray_marching` says."""
    n = rays_o.shape[0] if isinstance(rays_o, Tensor) and rays_o.ndim else 0
    floating("rays_o", rays_o, (n, 3), rays_o)
    floating("rays_d", rays_d, (n, 3), rays_o)
    if rays_o.dtype not in (torch.float32, torch.float64):
        raise ConfigError(f"`rays_o` must be float32 or float64, got {rays_o.dtype}. Convert the rays.")
    if t_min is not None and t_max is not None:
        start, end = floating("t_min", t_min, (n,), rays_o), floating("t_max", t_max, (n,), rays_o)
    elif scene_aabb is not None:
        start, end = ray_aabb_intersect(rays_o, rays_d, floating("scene_aabb", scene_aabb, (6,), rays_o))
    else:
        start, end = torch.zeros_like(rays_o[:, 0]), torch.full_like(rays_o[:, 0], _FAR)
    near, far = planes
    if near is not None:
        checks.numbers(near_plane=near)
        start = start.clamp_min(near)
    if far is not None:
        checks.numbers(far_plane=far)
        end = end.clamp_max(far)
    return start, end


def _place(
    rays_o: Tensor,
    rays_d: Tensor,
    bounds: tuple[Tensor, Tensor],
    grid: MarchedGrid | None,
    stride: Stride,
    stratified: bool,
) -> Samples:
    """Samples of rays between bounds (n_rays,) in the occupied cells of a grid."""
    if not 0 < stride.step_size < math.inf:
        raise ConfigError(f"`render_step_size` must be finite and above 0, got {stride.step_size}.")
    near, far = bounds
    if stratified:
        near = near + torch.rand_like(near) * stride.step_size
    if grid is None:
        return place_samples(rays_o, rays_d, (near, far), _everywhere(rays_o), stride)
    if grid.binary.ndim != 3 or tuple(grid.roi_aabb.shape) != (6,):
        raise ConfigError(
            "`grid` must have a `binary` of shape [X, Y, Z] and a `roi_aabb` of shape [6], got "
            f"{list(grid.binary.shape)} and {list(grid.roi_aabb.shape)}."
        )
    if grid.contraction_type is ContractionType.AABB:
        grids = Grids(grid.binary[None], grid.roi_aabb[None])
        return place_samples(rays_o, rays_d, (near, far), grids, stride)
    # The cells of a contracted grid are no boxes in space. So every step is looked up.
    steps = place_samples(rays_o, rays_d, (near, far), _everywhere(rays_o), stride)
    keep = [
        query_grid(
            rays_o[ray] + ((start + end) * 0.5)[:, None] * rays_d[ray],
            grid.roi_aabb.to(rays_o.dtype),
            grid.binary,
            grid.contraction_type,
        )
        for start, end, ray in zip(
            *(part.split(_PIECE) for part in (steps.t_start, steps.t_end, steps.ray_id)), strict=True
        )
    ]
    kept = compact(torch.cat(keep).bool(), steps.count)
    start, end, ray = (part[kept.index] for part in (steps.t_start, steps.t_end, steps.ray_id))
    return Samples(start, end, ray, kept.first, kept.count)


def _everywhere(rays_o: Tensor) -> Grids:
    """One occupied cell that covers all of space up to a distance of 1e10."""
    box = torch.full((1, 6), _FAR, dtype=rays_o.dtype, device=rays_o.device)
    box[:, :3] = -_FAR
    return Grids(torch.ones(1, 1, 1, 1, dtype=torch.bool, device=rays_o.device), box)


def _flat(name: str, function: FieldFn) -> AlongRays:
    """The callback with flat tensors (n,) in place of (n, 1)."""

    def ask(t_start: Tensor, t_end: Tensor, ray: Tensor) -> Tensor:
        return returned(name, function(t_start[:, None], t_end[:, None], ray), (len(ray), 1), ray)[:, 0]

    return ask

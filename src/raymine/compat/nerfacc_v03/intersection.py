"""`nerfacc.intersection`: rays against one box."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.compat.nerfacc_v03._arguments import floating
from raymine.toolkit.boxes import intersect

MISS = 1e10
"""Both distances of a ray that misses the box."""


@torch.no_grad()
def ray_aabb_intersect(rays_o: Tensor, rays_d: Tensor, aabb: Tensor) -> tuple[Tensor, Tensor]:
    """Entry and exit (n_rays,) of rays (n_rays, 3) in the box aabb (6,). Not differentiable.

    Entries are at least 0. Both are 1e10 if the line of the ray misses the box. A box behind the origin gives an entry
    of 0 and a negative exit.
    """
    n = rays_o.shape[0] if isinstance(rays_o, Tensor) and rays_o.ndim else 0
    floating("rays_o", rays_o, (n, 3), rays_o)
    floating("rays_d", rays_d, (n, 3), rays_o)
    floating("aabb", aabb, (6,), rays_o)
    t_min, t_max, _ = intersect(rays_o, rays_d, aabb[None], near=-torch.inf, miss=MISS)
    return t_min[:, 0].clamp_min(0.0), t_max[:, 0]

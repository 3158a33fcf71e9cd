"""`nerfacc.estimators.occ_grid`: the occupancy grid estimator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from raymine.compat.nerfacc.estimators.base import AbstractEstimator
from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.kernels.traverse.op import Grids, Stride
from raymine.toolkit import occupancy


class OccGridEstimator(AbstractEstimator):
    """Skips empty space with an occupancy grid of nested boxes, each twice as large as the one before.

    roi_aabb: {min x, y, z, max x, y, z} of the innermost box in world units. resolution: cells per side, one number or
    three. levels: number of boxes. Buffers: `resolution` (3,), `aabbs` (levels, 6), `occs` (levels * cells,),
    `binaries` (levels, X, Y, Z); not in the state dict: `grid_coords` (cells, 3), `grid_indices` (cells,). No cell is
    occupied before the first update.
    """

    DIM: int = 3

    resolution: Tensor
    aabbs: Tensor
    occs: Tensor
    binaries: Tensor
    grid_coords: Tensor
    grid_indices: Tensor

    def __init__(
        self,
        roi_aabb: Sequence[float] | Tensor,
        resolution: int | Sequence[int] | Tensor = 128,
        levels: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if "contraction_type" in kwargs:
            raise ConfigError("nerfacc removed `contraction_type` in 0.4. Use `levels` for scenes without bounds.")
        sides = occupancy.grid_sides(resolution, levels)
        if isinstance(roi_aabb, Tensor):
            checks.present(roi_aabb=roi_aabb)
            checks.numeric(roi_aabb=roi_aabb)
        box = torch.as_tensor(roi_aabb, dtype=torch.float32)
        if box.shape != (2 * self.DIM,) or not bool(box.isfinite().all()):
            raise ConfigError(f"`roi_aabb` must be 6 finite numbers, got {box.tolist()}.")
        self.cells_per_lvl = math.prod(sides)
        self.levels = levels
        self.register_buffer("resolution", torch.tensor(sides, dtype=torch.int32))
        self.register_buffer("aabbs", occupancy.nested_boxes(box, levels))
        self.register_buffer("occs", torch.zeros(levels * self.cells_per_lvl))
        self.register_buffer("binaries", torch.zeros(levels, *sides, dtype=torch.bool))
        indices = torch.arange(self.cells_per_lvl)
        self.register_buffer("grid_coords", occupancy.grid_coordinates(indices, sides), persistent=False)
        self.register_buffer("grid_indices", indices, persistent=False)

    @torch.no_grad()
    def sampling(
        self,
        rays_o: Tensor,
        rays_d: Tensor,
        sigma_fn: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
        alpha_fn: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
        near_plane: float = 0.0,
        far_plane: float = 1e10,
        t_min: Tensor | None = None,
        t_max: Tensor | None = None,
        render_step_size: float = 1e-3,
        early_stop_eps: float = 1e-4,
        alpha_thre: float = 0.0,
        stratified: bool = False,
        cone_angle: float = 0.0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Ray indices, t_starts and t_ends (n_samples,) of samples in occupied cells. Not differentiable.

        rays_o, rays_d: (n_rays, 3). t_min, t_max: (n_rays,), narrow near_plane .. far_plane per ray. sigma_fn,
        alpha_fn: (t_starts, t_ends, ray_indices) -> densities or opacities (n_samples,). With one of them, only visible
        samples are returned: transmittance of at least early_stop_eps and opacity of at least
        min(alpha_thre, mean occupancy). If both are given, `sigma_fn` is used.
        """
        checks.numbers(early_stop_eps=early_stop_eps, alpha_thre=alpha_thre)
        near, far = occupancy.ray_bounds(rays_o, near_plane, far_plane, t_min, t_max)
        if stratified:
            near = near + torch.rand_like(near) * render_step_size
        grids, stride = Grids(self.binaries, self.aabbs), Stride(render_step_size, cone_angle)
        samples = occupancy.place_samples(rays_o, rays_d, (near, far), grids, stride)
        ask = sigma_fn if sigma_fn is not None else alpha_fn
        if ask is not None and (alpha_thre > 0 or early_stop_eps > 0):
            # The mean waits for the device, and is only needed if there is a threshold.
            faint = min(alpha_thre, float(self.occs.mean())) if alpha_thre > 0 else 0.0
            samples = occupancy.keep_visible(samples, ask, early_stop_eps, faint, alpha=sigma_fn is None)
        return samples.ray_id, samples.t_start, samples.t_end

    @torch.no_grad()
    def update_every_n_steps(
        self,
        step: int,
        occ_eval_fn: Callable[[Tensor], Tensor],
        occ_thre: float = 1e-2,
        ema_decay: float = 0.95,
        warmup_steps: int = 256,
        n: int = 16,
    ) -> None:
        """Every n steps, update cells: value = max(ema_decay * value, occ_eval_fn at a random point of the cell).

        occ_eval_fn: world positions (N, 3) -> occupancies (N, 1). Before `warmup_steps` every cell is updated;
        afterwards a random quarter of the cells and up to as many occupied cells. A cell is occupied if its value
        exceeds min(occ_thre, mean value). Not differentiable.
        """
        if not self.training:
            raise RuntimeError(
                "the occupancy grid is in evaluation mode and stays as it is. Call `train()` first, or `_update` to "
                "change it all the same."
            )
        checks.whole(1, n=n)
        if step % n == 0:
            self._update(step, occ_eval_fn, occ_thre, ema_decay, warmup_steps)

    @torch.no_grad()
    def mark_invisible_cells(
        self, K: Tensor, c2w: Tensor, width: int, height: int, near_plane: float = 0.0, chunk: int = 32**3
    ) -> None:
        """Set `occs` to -1 for cells that no camera sees, or that some camera sees nearer than near_plane; else to 0.

        K: (N, 3, 3) or (1, 3, 3) in pixels. c2w: (N, 3, 4) or (N, 4, 4), z forward. width, height: in pixels. Cells
        with a negative value get -1 again.
        """
        sides = self.binaries.shape[1:]
        seen = occupancy.seen_cells(sides, self.aabbs, K, c2w, (width, height), near_plane, chunk)
        marked = ~seen | (self.occs < 0)
        self.occs.copy_(torch.where(marked, -torch.ones_like(self.occs), torch.zeros_like(self.occs)))

    @torch.no_grad()
    def _get_all_cells(self) -> list[Tensor]:
        return occupancy.cells_to_visit(self.occs, self.binaries, every=True)

    @torch.no_grad()
    def _sample_uniform_and_occupied_cells(self, n: int) -> list[Tensor]:
        """Per level, n random cells (without those marked invisible) and at most n occupied cells."""
        return occupancy.cells_to_visit(self.occs, self.binaries, every=False, some=n)

    @torch.no_grad()
    def _update(
        self,
        step: int,
        occ_eval_fn: Callable[[Tensor], Tensor],
        occ_thre: float = 0.01,
        ema_decay: float = 0.95,
        warmup_steps: int = 256,
    ) -> None:
        if step < warmup_steps:
            cells = self._get_all_cells()
        else:
            cells = self._sample_uniform_and_occupied_cells(max(1, self.cells_per_lvl // 4))
        occupancy.visit(self.occs, cells, self.binaries.shape[1:], self.aabbs, occ_eval_fn, ema_decay)
        self.binaries = occupancy.occupied_cells(self.occs, occ_thre).view(self.binaries.shape)

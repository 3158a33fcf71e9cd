"""The occupancy grid estimator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from raymine.compat.nerfacc.estimators.base import AbstractEstimator
from raymine.errors import ConfigError
from raymine.kernels.traverse.op import Grids, Stride
from raymine.toolkit import occupancy


class OccGridEstimator(AbstractEstimator):
    """Skips empty space with grids of nested boxes, each twice the one before.

    roi_aabb: {min x, y, z, max x, y, z} of the innermost box. resolution: cells a side, one number or three. Buffers:
    `resolution` (3,), `aabbs` (levels, 6), `occs` (levels * cells,), `binaries` (levels, X, Y, Z), and, not saved,
    `grid_coords` (cells, 3) and `grid_indices` (cells,). Nothing is occupied before the first update.
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
            raise ConfigError("`contraction_type` is a thing of the past. Use `levels` for scenes without bounds.")
        sides = [resolution] * self.DIM if isinstance(resolution, int) else [int(side) for side in resolution]
        box = torch.as_tensor(roi_aabb, dtype=torch.float32)
        if len(sides) != self.DIM or min(sides) < 1 or levels < 1 or box.shape != (2 * self.DIM,):
            raise ConfigError(
                f"the grid needs 3 sides and levels of 1 or more and a box of 6 numbers, got {sides}, {levels} and "
                f"shape {list(box.shape)}."
            )
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
        """Ray indices, starts and ends (n_samples,) of samples in occupied cells, and with a callback, of visible ones.

        t_min, t_max (n_rays,) narrow the planes. With both callbacks, `sigma_fn` is used. Not differentiable.
        """
        near, far = occupancy.ray_bounds(rays_o, near_plane, far_plane, t_min, t_max)
        if stratified:
            near = near + torch.rand_like(near) * render_step_size
        grids, stride = Grids(self.binaries, self.aabbs), Stride(render_step_size, cone_angle)
        samples = occupancy.place_samples(rays_o, rays_d, (near, far), grids, stride)
        ask = sigma_fn if sigma_fn is not None else alpha_fn
        if ask is not None and (alpha_thre > 0 or early_stop_eps > 0):
            # The mean waits for the device, and matters only below a threshold.
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
        """On every n-th step let cells take the larger of their decayed value and occ_eval_fn (N, 3) -> (N, 1).

        All cells before `warmup_steps`, later a quarter anywhere and up to a quarter of occupied ones.
        """
        if not self.training:
            raise RuntimeError(
                "the occupancy grid is in evaluation mode and stays as it is. Call `train()` first, or `_update` to "
                "change it all the same."
            )
        if step % n == 0:
            self._update(step, occ_eval_fn, occ_thre, ema_decay, warmup_steps)

    @torch.no_grad()
    def mark_invisible_cells(
        self, K: Tensor, c2w: Tensor, width: int, height: int, near_plane: float = 0.0, chunk: int = 32**3
    ) -> None:
        """Set `occs` to -1 where no camera looks, or one is nearer than near_plane, and to 0 elsewhere.

        K (N, 3, 3) or (1, 3, 3); c2w (N, 3, 4) or (N, 4, 4), z forward. Cells that are already at -1 stay so.
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
        """Per level, n cells anywhere (without marked ones) and at most n occupied ones."""
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
            cells = self._sample_uniform_and_occupied_cells(self.cells_per_lvl // 4)
        occupancy.visit(self.occs, cells, self.binaries.shape[1:], self.aabbs, occ_eval_fn, ema_decay)
        self.binaries = occupancy.occupied_cells(self.occs, occ_thre).view(self.binaries.shape)

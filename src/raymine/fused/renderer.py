"""Rendering with the fused kernels: many rays at a time, no further than the grid says that they are open."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from raymine.contracts import Rays, Rendered
from raymine.fields import HashField
from raymine.fused.buffers import Buffers
from raymine.fused.grid import DeviceGrid
from raymine.fused.model import HalfModel
from raymine.fused.stages import ask_field, march_rays
from raymine.kernels._triton import programs
from raymine.kernels.composite.gpu import render
from raymine.kernels.ngp_step.gpu_draw import look
from raymine.render import SEEN
from raymine.samplers import OccupancySampler

_RAYS, _SAMPLES = 1 << 17, 1 << 22


class FusedRenderer:
    """A `contracts.Renderer` of a hash-grid field and its occupancy grid, as they are when a picture is asked for."""

    def __init__(self, field: HashField, sampler: OccupancySampler, stop: float = 1e-4) -> None:
        device = field.table.device
        self.field, self.sampler, self.stop = field, sampler, stop
        self.model = HalfModel(field)
        nothing = torch.zeros(2, dtype=torch.int32, device=device)
        self.grid = DeviceGrid(sampler, nothing, nothing)
        self.buffers = Buffers(_RAYS, _SAMPLES, device)
        # As many rays as surely fit, to begin with; then as many as the last ones say.
        self._rays = 1 << 12
        self._n = torch.zeros(1, dtype=torch.int32, device=device)

    @torch.no_grad()
    def render(self, rays: Rays, background: Tensor) -> Rendered:
        """See `contracts.Renderer`."""
        self.model.refresh(self.field)
        self.grid.refresh()
        n, device = len(rays), rays.origins.device
        colour, opacity, depth = (torch.empty(n, k, device=device) for k in (3, 1, 1))
        done = 0
        while done < n:
            span = slice(done, min(n, done + self._rays))
            lost = self._some(rays, span, background, colour[span], opacity[span], depth[span])
            if lost:
                self._rays = max(256, self._rays // 2)
                continue
            done = span.stop
        empty = colour.new_zeros(0)
        return Rendered(colour, opacity[:, 0], depth[:, 0], empty)

    def _some(self, rays: Rays, span: slice, background: Tensor, colour: Tensor, opacity: Tensor, depth: Tensor) -> int:
        """Render some rays; how many found no room."""
        b, n = self.buffers, span.stop - span.start
        self._n.fill_(n)
        b.jitter.fill_(0.0)
        parts = (rays.origins, rays.directions, rays.near, rays.far)
        look[(triton.cdiv(n, 256),)](*(part[span].contiguous() for part in parts), n, b.rays, b.harmonics, BLOCK=256)
        march_rays(b, self.grid, self._n)
        ask_field(b, self.model, self._n, self.stop)
        render[(programs(b.raw.device, 32),)](
            b.raw, b.t_start, b.t_end, b.first, b.seen, self._n, background.to(b.raw), self.stop, SEEN,
            colour, opacity, depth, CHUNK=32, num_warps=1,
        )  # fmt: skip
        marched, lost = int(b.n_marched), int(b.n_lost)
        fit = int(n * 0.7 * b.capacity / max(1, marched))
        self._rays = max(256, min(_RAYS, fit, 4 * self._rays))
        return lost

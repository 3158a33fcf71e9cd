"""Rendering with the fused kernels: many rays at a time, in occupied cells only, until the early stop."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from raymine.contracts import Rays, Rendered
from raymine.engines.fused.buffers import Buffers
from raymine.engines.fused.grid import DeviceGrid
from raymine.engines.fused.model import HalfModel
from raymine.engines.fused.stages import ask_field, march_rays
from raymine.fields import HashField
from raymine.kernels._triton import programs
from raymine.kernels.composite.gpu import render
from raymine.kernels.ngp_step.gpu_draw import look
from raymine.render import SEEN
from raymine.samplers import OccupancySampler

_RAYS, _SAMPLES = 1 << 19, 1 << 24
"""Capacity of the buffers, which take 514 MB. On views of bonsai, with 300 samples a ray, 58, 69, 77 and 75 frames/s
with 2^23, 2^24, 2^25 and 2^26 samples: fewer batches, each of which starts 7 kernels."""
_PLENTY = 8 << 30
"""Bytes of free device memory from which on the buffers may be large."""
_FIRST = 1 << 14
"""Rays of the first batch: few enough to fit for any scene."""


class FusedRenderer:
    """A `contracts.Renderer` of a hash-grid field and its occupancy grid, as they were at the last `refresh`."""

    def __init__(self, field: HashField, sampler: OccupancySampler, stop: float = 1e-4) -> None:
        device = field.table.device
        self.field, self.sampler, self.stop = field, sampler, stop
        self.model = HalfModel(field)
        nothing = torch.zeros(2, dtype=torch.int32, device=device)
        self.grid = DeviceGrid(sampler, nothing, nothing)
        self.buffers = _buffers_on(device)
        self._rays = min(_FIRST, self.buffers.max_rays)
        self._n = torch.zeros(1, dtype=torch.int32, device=device)
        self._found = torch.zeros(2, dtype=torch.int32, device=device)

    def refresh(self) -> None:
        """Copy the current field and grid."""
        self.model.refresh(self.field)
        self.grid.refresh()

    @torch.no_grad()
    def render(self, rays: Rays, background: Tensor) -> Rendered:
        """See `contracts.Renderer`. Waits for the device once; more often if samples do not fit into the buffers."""
        n, device, b = len(rays), rays.origins.device, self.buffers
        colour, opacity, depth = (torch.empty(n, *tail, device=device) for tail in ((3,), (), ()))
        behind = background.to(b.raw)
        parts = tuple(part.contiguous() for part in (rays.origins, rays.directions, rays.near, rays.far))
        while True:
            self._found.zero_()
            for start in range(0, n, self._rays):
                span = slice(start, min(n, start + self._rays))
                self._some([part[span] for part in parts], behind, colour[span], opacity[span], depth[span])
            lost, most = self._found.tolist()
            tried = self._rays
            # The number of rays that would have filled 0.7 of the capacity.
            fit = int(min(n, tried) * 0.7 * b.capacity / max(1, most))
            self._rays = max(256, min(b.max_rays, fit, 4 * tried)) if not lost else max(256, min(tried // 2, fit))
            if not lost or tried <= 256:
                return Rendered(colour, opacity, depth, colour.new_zeros(0))

    def _some(self, parts: list[Tensor], background: Tensor, colour: Tensor, opacity: Tensor, depth: Tensor) -> None:
        b, n = self.buffers, len(opacity)
        self._n.fill_(n)
        look[(triton.cdiv(n, 256),)](*parts, n, b.rays, b.harmonics, BLOCK=256)
        march_rays(b, self.grid, self._n)
        ask_field(b, self.model, self.stop)
        render[(programs(b.raw.device, 32),)](
            b.raw, b.t_start, b.t_end, b.first, b.seen, self._n, background, self.stop, SEEN, colour, opacity, depth,
            CHUNK=32, num_warps=1,
        )  # fmt: skip
        self._found[0] += b.n_lost[0]
        torch.maximum(self._found[1:], b.n_marched, out=self._found[1:])


def _buffers_on(device: torch.device) -> Buffers:
    """Buffers of the usual capacity, or of half of it where device memory is short or the run has a limit of it."""
    if device.type != "cuda":
        return Buffers(_RAYS // 64, _SAMPLES // 64, device)
    # Older versions of torch do not tell the limit of a process.
    share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)(device.index)
    scarce = share < 1.0 or torch.cuda.mem_get_info(device)[0] < _PLENTY
    return Buffers(_RAYS, _SAMPLES // 2 if scarce else _SAMPLES, device)

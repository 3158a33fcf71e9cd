"""Buffers of a fused step. They are allocated once, with more capacity than a step is expected to need."""

from __future__ import annotations

import torch

ROOM = 1.5
"""Capacity in samples / samples wanted per step. A step may march more samples than wanted, because its number of rays
is computed from the step before."""


class Buffers:
    """Buffers for at most `rays` rays and `samples` samples. Attributes have the names of the kernels' arguments."""

    def __init__(self, rays: int, samples: int, device: torch.device) -> None:
        def floats(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, device=device)

        def whole(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.max_rays, self.capacity = rays, samples
        self.rays, self.wanted = floats(rays, 8), floats(rays, 8)
        self.harmonics = torch.zeros(rays, 16, dtype=torch.float16, device=device)
        self.jitter = floats(rays)
        self.counted, self.running = (torch.zeros(rays, dtype=torch.int64, device=device) for _ in range(2))
        self.count, self.first, self.seen, self.hitting = whole(rays), whole(rays), whole(rays), whole(rays)
        self.t_start, self.t_end, self.ray_id = floats(samples), floats(samples), whole(samples)
        self.raw = floats(samples, 4)
        self.totals = whole(5)
        self.n_samples, self.n_marched, self.n_hitting, self.n_lost, self.queue = self.totals.split(1)


class TrainBuffers(Buffers):
    """The buffers of a training step: those of rendering, and more."""

    def __init__(self, rays: int, samples: int, device: torch.device) -> None:
        super().__init__(rays, samples, device)
        self.image = torch.zeros(rays, dtype=torch.int32, device=device)
        self.gradient = torch.zeros(samples, 4, device=device)
        self.size = torch.zeros(samples, device=device)
        self.index = torch.zeros(samples, dtype=torch.int32, device=device)
        self.weight = torch.zeros(samples, device=device)
        self.block_count = torch.zeros(-(-samples // 1024), dtype=torch.int32, device=device)
        self.n_chosen = torch.zeros(1, dtype=torch.int32, device=device)

"""What the cases of `raymine bench ops` are made of: sizes, random inputs of a fixed seed, and the record of a case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from raymine.kernels.march.op import Occupancy, pack_bits
from raymine.kernels.packed import Samples

SEED = 7
"""The seed of all inputs. Every case starts from it, so its inputs do not depend on which other ops are run."""

PER_RAY = 32
"""Mean number of samples per ray."""

ROUNDING = 1e-3
"""Largest deviation due to another order of sums, or to positions that round differently on a fine grid."""

HALF = 1e-2
"""Largest deviation with matrix products in float16, which has 11 bits of precision."""

JUMPS = 5e-2
"""Largest deviation of discontinuous results, for which rounding decides between two correct values: at the face of a
cell, at the transmittance where a ray stops, or at the kink of a ReLU. In float16 the kinks dominate: the gradients of
the reference, rounded to float16 after every layer, deviate by 0.02. Wrong results deviate by about 1; the tests of an
op are stricter."""

Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """samples: per batch. log2_entries: per level of the hash grid. resolution: cells per side of the occupancy."""

    samples: int
    log2_entries: int
    resolution: int
    device: torch.device


@dataclass(frozen=True)
class Case:
    """One op in one direction on one set of inputs.

    moved: bytes that one call must move; None if not known. bound: the largest allowed deviation from the reference.
    prepare: called with the backend forced; returns the call to time, whose results have names. compared: selects or
    derives the results that are compared.
    """

    direction: str
    shapes: dict[str, int]
    moved: int | None
    bound: float
    prepare: Callable[[], Callable[[], Named]]
    compared: Callable[[Named], Named] = dict


Maker = Callable[[Sizes], Case]


class RandomInputs:
    """Random tensors. They are drawn on the CPU and then moved, so that every device gets the same."""

    def __init__(self, sizes: Sizes) -> None:
        self._generator = torch.Generator().manual_seed(SEED)
        self.device = sizes.device

    def uniform(self, *shape: int) -> Tensor:
        return self._uniform(*shape).to(self.device)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator).to(self.device)

    def rays(self, samples: int) -> Samples:
        """Packed intervals of length 0.01, from distance 2 on. Rays get random numbers of samples."""
        rays = max(1, samples // PER_RAY)
        edges = self._uniform(rays).cumsum(0)
        ray_id = torch.searchsorted(edges, self._uniform(samples) * edges[-1]).clamp_max(rays - 1).sort().values
        count = torch.bincount(ray_id, minlength=rays)
        first = count.cumsum(0) - count
        t = 2 + 0.01 * (torch.arange(samples) - first[ray_id])
        return Samples(t, t + 0.01, ray_id, first, count).to(self.device)

    def blobs(self, resolution: int) -> Occupancy:
        """An occupancy grid with twelve blobs that fill 3 % of the box +-1.5."""
        at = (torch.arange(resolution) + 0.5) / resolution * 3 - 1.5
        cells = torch.stack(torch.meshgrid(at, at, at, indexing="ij"), -1)
        away = torch.full(cells.shape[:3], torch.inf)
        for centre, radius in zip(self._uniform(12, 3) * 2 - 1, self._uniform(12) + 0.3, strict=True):
            away = torch.minimum(away, (cells - centre).norm(dim=-1) / radius)
        limit = away.flatten().kthvalue(round(0.03 * away.numel())).values
        return pack_bits((away <= limit)[None].to(self.device), (-1.5,) * 3, (1.5,) * 3)

    def unit(self, n: int) -> Tensor:
        return torch.nn.functional.normalize(self.normal(n, 3), dim=-1)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._generator)

"""Random edges and CDFs of rays, in rows of one length and packed."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.toolkit.pack import Pack, pack_counts


def ascending(seed: int, rays: int, n: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Random edges in 2..5 and CDFs in 0..1, [rays, n] each."""
    rng = torch.Generator().manual_seed(seed)
    edges = 2 + 3 * torch.rand(rays, n, generator=rng, dtype=dtype).sort(-1).values
    return edges, torch.rand(rays, n, generator=rng, dtype=dtype).sort(-1).values


def ragged(seed: int, rays: int, most: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Pack]:
    """Packed edges and CDFs, and their pack; some rays have no edges, some have one."""
    count = torch.randint(0, most, (rays,), generator=torch.Generator().manual_seed(seed))
    if rays > 2:
        count[:2] = torch.tensor([0, 1])
    whole = [ascending(seed + i, 1, n, dtype) for i, n in enumerate(count.tolist())]
    empty = [torch.zeros(0, dtype=dtype)]
    return (*(torch.cat([w[i][0] for w in whole] + empty) for i in (0, 1)), pack_counts(count))

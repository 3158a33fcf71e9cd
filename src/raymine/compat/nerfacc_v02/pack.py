"""`nerfacc.pack`: which samples belong to which ray."""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.compat.nerfacc_v03 import pack
from raymine.compat.nerfacc_v03._arguments import packed
from raymine.compat.nerfacc_v03.pack import unpack_data as unpack_data
from raymine.errors import ConfigError


def pack_data(data: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """As in 0.3, with packed_info as int64."""
    chosen, info = pack.pack_data(data, mask)
    return chosen, info.long()


@torch.no_grad()
def unpack_info(packed_info: Tensor) -> Tensor:
    """ray_indices (n_samples,) int64 of packed_info (n_rays, 2). Not differentiable.

    Waits for the device, to know the number of samples.
    """
    count = packed(packed_info).count
    if count.is_meta:
        raise ConfigError("`packed_info` is on meta and has no values, which are needed here.")
    return pack.unpack_info(packed_info, int(count.sum()))

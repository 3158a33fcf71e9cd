"""Running sums and products along rays, packed or batched.

Packed: values [B] or [B, C] with a `Pack`. Batched: values [..., n], along the last dimension. An exclusive scan leaves
out the sample's own value, so that the first sample of a ray gets 0 (sums) or 1 (products).
"""

from __future__ import annotations

import torch
from torch import Tensor

from raymine.errors import ConfigError
from raymine.kernels import checks
from raymine.kernels.scan.op import running_product as packed_product
from raymine.kernels.scan.op import running_sum as packed_sum
from raymine.toolkit.pack import Pack

_HALVES = (torch.float16, torch.bfloat16)


def running_sum(values: Tensor, pack: Pack | None = None, *, exclusive: bool = False) -> Tensor:
    """Running sums along each ray, in the shape and type of `values`. Differentiable, any number of times.

    float16 and bfloat16 are summed in float32. NaN and infinity affect the samples behind them on the same ray, but no
    other ray. A sample that belongs to no ray of `pack` gets NaN.
    """
    if pack is not None:
        return packed_sum(values, *pack, exclusive=exclusive)
    return _batched(values, 0.0, exclusive)


def running_product(values: Tensor, pack: Pack | None = None, *, exclusive: bool = False) -> Tensor:
    """Running products along each ray, in the shape and type of `values`; otherwise as `running_sum`.

    Differentiable, also where factors are 0, because nothing is divided.
    """
    if pack is not None:
        return packed_product(values, *pack, exclusive=exclusive)
    return _batched(values, 1.0, exclusive)


def _batched(values: Tensor, neutral: float, exclusive: bool) -> Tensor:
    if values.ndim == 0:
        raise ConfigError("`values` must have a dimension to scan, got a single number.")
    checks.numeric(values=values)
    wide = values.float() if values.dtype in _HALVES else values
    if exclusive:
        wide = torch.cat((torch.full_like(wide[..., :1], neutral), wide[..., :-1]), -1)
    out = wide.cumprod(-1) if neutral else wide.cumsum(-1)
    return out.to(values.dtype) if values.dtype in _HALVES else out

"""`nerfacc.scan`: running sums and products over batched or flat values.

Batched inputs [..., n] are scanned along the last dimension. Flat inputs [B] need `packed_info` [R, 2] (first sample
and count of each ray) or `indices` [B], where each run of equal numbers is a ray. Everything is differentiable in the
inputs; products also where a factor is 0.
"""

from __future__ import annotations

from torch import Tensor

from raymine.compat.nerfacc.pack import _pack_of
from raymine.errors import ConfigError
from raymine.toolkit.pack import Pack
from raymine.toolkit.scan import running_product, running_sum


def inclusive_sum(inputs: Tensor, packed_info: Tensor | None = None, indices: Tensor | None = None) -> Tensor:
    """Running sums, each including its own value, in the shape of `inputs`. Differentiable."""
    return running_sum(inputs, _pack(inputs, packed_info, indices))


def exclusive_sum(inputs: Tensor, packed_info: Tensor | None = None, indices: Tensor | None = None) -> Tensor:
    """Running sums of the values before each one, in the shape of `inputs`; 0 for the first. Differentiable."""
    return running_sum(inputs, _pack(inputs, packed_info, indices), exclusive=True)


def inclusive_prod(inputs: Tensor, packed_info: Tensor | None = None, indices: Tensor | None = None) -> Tensor:
    """Running products, each including its own value, in the shape of `inputs`. Differentiable."""
    return running_product(inputs, _pack(inputs, packed_info, indices))


def exclusive_prod(inputs: Tensor, packed_info: Tensor | None = None, indices: Tensor | None = None) -> Tensor:
    """Running products of the values before each one, in the shape of `inputs`; 1 for the first. Differentiable."""
    return running_product(inputs, _pack(inputs, packed_info, indices), exclusive=True)


def _pack(inputs: Tensor, packed_info: Tensor | None, indices: Tensor | None) -> Pack | None:
    if (packed_info is not None or indices is not None) and inputs.ndim != 1:
        raise ConfigError(f"`inputs` must be flat, [B], with `packed_info` or `indices`, got {list(inputs.shape)}.")
    if indices is not None and indices.shape != inputs.shape:
        raise ConfigError(f"`indices` must have shape {list(inputs.shape)}, as `inputs`, got {list(indices.shape)}.")
    return _pack_of(packed_info, indices)

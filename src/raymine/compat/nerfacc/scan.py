"""`nerfacc.scan`: running sums and products over batched or flat values.

Batched inputs [..., n] are scanned along the last dimension. Flat inputs [B] come with `packed_info` [R, 2] (first and
count of each ray) or with `indices` [B], where each run of equal numbers is a ray. Differentiable in the inputs; of a
product also where a factor is 0.
"""

from __future__ import annotations

from torch import Tensor

from raymine.compat.nerfacc.pack import _pack_of
from raymine.errors import ConfigError
from raymine.toolkit.pack import Pack
from raymine.toolkit.scan import running_product, running_sum


def inclusive_sum(inputs: Tensor, packed_info: Tensor | None = None, indices: Tensor | None = None) -> Tensor:
    """Sums up to and with each value, in the shape of the inputs."""
    return running_sum(inputs, _pack(inputs, packed_info, indices))


def exclusive_sum(inputs: Tensor, packed_info: Tensor | None = None, indices: Tensor | None = None) -> Tensor:
    """Sums of what lies before each value, in the shape of the inputs."""
    return running_sum(inputs, _pack(inputs, packed_info, indices), exclusive=True)


def inclusive_prod(inputs: Tensor, packed_info: Tensor | None = None, indices: Tensor | None = None) -> Tensor:
    """Products up to and with each value, in the shape of the inputs."""
    return running_product(inputs, _pack(inputs, packed_info, indices))


def exclusive_prod(inputs: Tensor, packed_info: Tensor | None = None, indices: Tensor | None = None) -> Tensor:
    """Products of what lies before each value, in the shape of the inputs."""
    return running_product(inputs, _pack(inputs, packed_info, indices), exclusive=True)


def _pack(inputs: Tensor, packed_info: Tensor | None, indices: Tensor | None) -> Pack | None:
    if (packed_info is not None or indices is not None) and inputs.ndim != 1:
        raise ConfigError(f"`inputs` must be flat, [B], with `packed_info` or `indices`, got {list(inputs.shape)}.")
    if indices is not None and indices.shape != inputs.shape:
        raise ConfigError(f"`indices` must have shape {list(inputs.shape)}, as `inputs`, got {list(indices.shape)}.")
    return _pack_of(packed_info, indices)

"""Running sums and products in plain torch, differentiable by autograd: the definition.

Sample i of a ray holds x_i. The operation `op` is + or *, with neutral element e = 0 or 1:

    inclusive   y_i = x_1 op ... op x_i
    exclusive   y_i = x_1 op ... op x_{i-1},   y_1 = e
    reverse     the same from the far end of the ray

It is computed by doubling: after the round with step d, every sample holds the result over the last 2 d samples up to
itself. So nothing is subtracted or divided, rays do not affect each other, and autograd is correct if a factor is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def scan(
    values: Tensor, first: Tensor, count: Tensor, product: bool, exclusive: bool, reverse: bool, fill: float
) -> Tensor:
    """values [B, C] -> [B, C]; `fill` for a sample that belongs to no ray. Differentiable; computed in float64."""
    ray = torch.repeat_interleave(torch.arange(len(first), device=first.device), count)
    along = torch.arange(len(ray), device=ray.device) - (count.cumsum(0) - count)[ray]
    place = first[ray] + (count[ray] - 1 - along if reverse else along)
    neutral = 1.0 if product else 0.0

    def from_before(x: Tensor, step: int) -> Tensor:
        """The values of the samples `step` places earlier in the scan; neutral if that is another ray."""
        padded = torch.cat((torch.full_like(x[:step], neutral), x[:-step]))
        return torch.where((along >= step)[:, None], padded, neutral)

    out = values[place].double()
    if exclusive:
        out = from_before(out, 1)
    step, longest = 1, int(count.max()) if len(count) else 0
    while step < longest:
        out = out * from_before(out, step) if product else out + from_before(out, step)
        step *= 2
    return torch.full_like(values, fill).index_copy(0, place, out.to(values.dtype))

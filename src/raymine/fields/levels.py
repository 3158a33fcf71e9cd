"""Weights that fade the levels of a field in from coarse to fine, after BARF (Lin et al., 2021).

With L levels, of which a share s is open, a = s L levels are open. Level k = 0 .. L - 1 has the weight

    w_k = (1 - cos(pi * clamp(a - k, 0, 1))) / 2

so levels below a - 1 count in full, those above a not at all, and the one between is faded in smoothly.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from raymine.errors import ConfigError


def level_weights(levels: int, share: float, device: torch.device | str = "cpu") -> Tensor | None:
    """Weights [levels] float32 in 0..1, or None if all are 1. share: of the levels that are open, in 0..1."""
    if not 0 <= share <= 1:
        raise ConfigError(f"the `share` of open levels must be in 0 .. 1, got {share}.")
    if share == 1:
        return None
    opened = [min(1.0, max(0.0, share * levels - level)) for level in range(levels)]
    return torch.tensor([(1 - math.cos(math.pi * part)) / 2 for part in opened], device=device)


def in_place(current: Tensor | None, wanted: Tensor | None) -> Tensor | None:
    """The weights `wanted`, written into `current` where there is one: a CUDA graph reads them in the same memory.

    None is 1 for all levels, which is written into `current` as well; a product with 1 changes no bit.
    """
    if current is None:
        return wanted
    return current.fill_(1.0) if wanted is None else current.copy_(wanted)

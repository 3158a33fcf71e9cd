"""Initial values of network weights, as a function of the seed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from raymine.kernels.philox.op import Stream, uniform


def xavier(shape: tuple[int, int], seed: int, layer: int, device: torch.device | str = "cpu") -> Tensor:
    """Xavier-uniform weights [inputs, outputs], of variance 2 / (inputs + outputs). Each layer has its own draws."""
    limit = math.sqrt(6 / sum(shape))
    return (uniform(seed, layer, Stream.INITIAL, shape, device) * 2 - 1) * limit

"""The colour network that the hash-grid, the dynamic and the plane field share."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from raymine.kernels.harmonics.op import harmonics
from raymine.kernels.ngp_step.op import DEGREE


def colour_network(geometry: Tensor, directions: Tensor, layers: Iterable[Tensor]) -> Tensor:
    """Outputs of a density network [n, geometry] and unit directions [n, 3] -> colour pre-activations [n, 3].

    layers: weights without bias, with a ReLU between them; the input is `geometry` beside the spherical harmonics of
    the direction. Under `torch.autocast` the result has the dtype of the matrix products.
    """
    *hidden_layers, last = layers
    hidden = torch.cat((geometry, harmonics(directions, DEGREE).to(geometry.dtype)), -1)
    for weight in hidden_layers:
        hidden = (hidden @ weight).relu_()
    return hidden @ last

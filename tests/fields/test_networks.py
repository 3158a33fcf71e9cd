"""The colour network: the hand-written product of its layers."""

from __future__ import annotations

import torch

from raymine.fields.networks import colour_network
from raymine.kernels.harmonics.op import harmonics


def test_colour_network_is_its_layers_with_relu_between() -> None:
    geometry, directions = torch.randn(5, 4), torch.nn.functional.normalize(torch.randn(5, 3), dim=-1)
    layers = [torch.randn(4 + 16, 8), torch.randn(8, 8), torch.randn(8, 3)]
    inputs = torch.cat((geometry, harmonics(directions, 4)), -1)
    expected = torch.relu(torch.relu(inputs @ layers[0]) @ layers[1]) @ layers[2]
    assert torch.allclose(colour_network(geometry, directions, layers), expected)

"""The networks of LPIPS in plain torch. Not differentiable: they score images.

For images a, b in -1..1, shifted and scaled as the networks were trained, f_l(a) [C, H, W] is the output of the ReLU
that ends stage l, and w_l [C] >= 0 is the head of that stage:

    n_l(a)     = f_l(a) / (|f_l(a)|_2 over channels + 1e-10)
    LPIPS(a,b) = sum over stages of the mean over pixels of sum_c w_l[c] (n_l(a) - n_l(b))^2
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

LpipsNet = Literal["alex", "vgg"]

SHIFT = (-0.030, -0.088, -0.188)
SCALE = (0.458, 0.448, 0.450)
_EPSILON = 1e-10


@dataclass(frozen=True)
class Convolution:
    """One convolution and its ReLU. pool: kernel of a max pooling with stride 2 before it, 0 for none. ends_stage:
    whether LPIPS compares its output."""

    channels_in: int
    channels: int
    kernel: int
    stride: int = 1
    padding: int = 1
    pool: int = 0
    ends_stage: bool = True


_ALEX = (
    Convolution(3, 64, 11, stride=4, padding=2),
    Convolution(64, 192, 5, padding=2, pool=3),
    Convolution(192, 384, 3, pool=3),
    Convolution(384, 256, 3),
    Convolution(256, 256, 3),
)


def _vgg() -> tuple[Convolution, ...]:
    """VGG16: stages of 2, 2, 3, 3 and 3 convolutions, with pooling between stages."""
    layers, channels_in = [], 3
    for stage, (count, channels) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))):
        for i in range(count):
            pool = 2 if stage and i == 0 else 0
            layers.append(Convolution(channels_in, channels, 3, pool=pool, ends_stage=i == count - 1))
            channels_in = channels
    return tuple(layers)


LAYERS: dict[LpipsNet, tuple[Convolution, ...]] = {"alex": _ALEX, "vgg": _vgg()}
SMALLEST: dict[LpipsNet, int] = {"alex": 31, "vgg": 16}
"""Pixels of the shortest side that leave at least one pixel at every stage."""


def shapes_of(net: LpipsNet) -> dict[str, tuple[int, ...]]:
    """The name and shape of every weight: conv<i>.weight [O, I, k, k], conv<i>.bias [O], head<stage>.weight [C]."""
    shapes: dict[str, tuple[int, ...]] = {}
    for i, layer in enumerate(LAYERS[net]):
        shapes[f"conv{i}.weight"] = (layer.channels, layer.channels_in, layer.kernel, layer.kernel)
        shapes[f"conv{i}.bias"] = (layer.channels,)
    ends = [layer.channels for layer in LAYERS[net] if layer.ends_stage]
    return shapes | {f"head{stage}.weight": (channels,) for stage, channels in enumerate(ends)}


class Lpips:
    """LPIPS with given weights, on their device. weights: those of `shapes_of`, float32."""

    def __init__(self, net: LpipsNet, weights: Mapping[str, Tensor]) -> None:
        expected = shapes_of(net)
        found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        if found != expected:
            wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
            raise ValueError(f"`weights` must have the names and shapes of {net}; these differ: {', '.join(wrong)}.")
        self.net: LpipsNet = net
        self._weights = dict(weights)

    @property
    def device(self) -> torch.device:
        return self._weights["conv0.weight"].device

    @torch.no_grad()
    def __call__(self, a: Tensor, b: Tensor) -> float:
        """The distance of images [H, W, 3] in 0..1: 0 for equal images. NaN if a side has too few pixels."""
        if a.ndim != 3 or a.shape != b.shape or a.shape[2] != 3:
            raise ValueError(
                f"images must have one and the same shape [H, W, 3], got {list(a.shape)}, {list(b.shape)}."
            )
        if min(a.shape[:2]) < SMALLEST[self.net]:
            return float("nan")
        total = 0.0
        for stage, (x, y) in enumerate(zip(self._stages(a), self._stages(b), strict=True)):
            squared = (_normalised(x) - _normalised(y)).square_()
            head = self._weights[f"head{stage}.weight"][None, :, None, None]
            total += float(F.conv2d(squared, head).double().mean())
        return total

    def _stages(self, image: Tensor) -> Iterator[Tensor]:
        """The output [1, C, h, w] of each stage, one at a time: all of VGG at once would take gigabytes."""
        x = image.to(self.device, torch.float32).movedim(-1, 0)[None] * 2.0 - 1.0
        shift, scale = (torch.tensor(values, device=self.device)[:, None, None] for values in (SHIFT, SCALE))
        x = (x - shift) / scale
        for i, layer in enumerate(LAYERS[self.net]):
            if layer.pool:
                x = F.max_pool2d(x, layer.pool, stride=2)
            weight, bias = self._weights[f"conv{i}.weight"], self._weights[f"conv{i}.bias"]
            x = F.conv2d(x, weight, bias, stride=layer.stride, padding=layer.padding).relu_()
            if layer.ends_stage:
                yield x


def _normalised(features: Tensor) -> Tensor:
    """Features [1, C, h, w] divided by their length over channels."""
    return features / (features.square().sum(dim=1, keepdim=True).sqrt() + _EPSILON)

"""Free space in front of cameras: a penalty on density there, so that few photos are not explained by fog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from raymine.contracts import ParameterView, Reads, activations_of
from raymine.errors import ConfigError, require_finite

_STRIDES = (0.8191725134, 0.6710436067, 0.5497004779)
"""Powers of the root of x^4 = x + 1, inverted: multiples of them, modulo 1, fill a cube evenly."""


@dataclass(frozen=True)
class FreeSpaceLoss:
    """`weight` times the mean opacity of `length` along a ray, at points that every camera has in front of it.

    Nobody photographs from inside of a thing, so the first `share` of the way from a camera to the centre of the scene
    is empty. With few photos nothing else says so: matter there hides the rest from other views, or is seen by one
    photo alone, which it then explains by itself.

    Points are even in distance, up to `share` of the camera's distance to the origin of the world (the centre of
    normalised scenes), and over a square of +-`wide` at distance 1 around the axis of the camera. A step has `count` of
    them, all cameras in turn. They are a function of the step.
    """

    reads: ClassVar[Reads] = "parameters"

    weight: float = 0.1
    share: float = 0.3
    wide: float = 0.5
    length: float = 0.2
    count: int = 2048

    def __post_init__(self) -> None:
        require_finite(self)
        if not (self.weight > 0 and 0 < self.share < 1 and self.wide >= 0 and self.length > 0 and self.count >= 1):
            raise ConfigError(
                "the free-space loss needs weight > 0, 0 < share < 1, wide >= 0, length > 0 and count >= 1; "
                f"got {self.weight}, {self.share}, {self.wide}, {self.length} and {self.count}."
            )

    def __call__(self, view: ParameterView) -> Tensor:
        if view.field is None or view.cameras is None:
            raise ConfigError("the free-space loss needs the field and the cameras that it is trained on.")
        points = self.points(view.cameras, view.step)
        density = activations_of(view.field).density(view.field.density(points))
        return self.weight * -torch.expm1(-self.length * density).mean()

    def points(self, cameras: Tensor, step: int | Tensor) -> Tensor:
        """[count, 3] points of a step in front of cameras [I, 3, 4], camera-to-world."""
        # A captured step counts in int32, in which the product would overflow after a million steps.
        first = (step.long() if isinstance(step, Tensor) else step) * self.count
        index = torch.arange(self.count, device=cameras.device) + first
        # In float64: multiples of a stride lose their fraction in float32.
        u = torch.stack([(index.double() * stride).frac() for stride in _STRIDES], -1).to(cameras.dtype)
        camera = cameras[index % len(cameras)]
        right, up, back, origin = camera.unbind(-1)
        along = self.wide * (2 * u[:, :1] - 1) * right + self.wide * (2 * u[:, 1:2] - 1) * up - back
        reach = self.share * origin.norm(dim=-1, keepdim=True)
        return origin + u[:, 2:] * reach * along

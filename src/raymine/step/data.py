"""The data of a training step: cameras, pixels and the bounds of the scene."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from raymine.contracts import Bounds, ImageSource
from raymine.rays import CameraRig


class DepthSource(Protocol):
    """Depths of pixels; `scenes.depth.DepthMaps` is one."""

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> Tensor:
        """Pixels [R] on the CPU -> depths [R] along the view axis, in world units; 0 where they are not known."""
        ...


@dataclass(frozen=True)
class TrainData:
    """Camera i of `rig` took image i of `images`.

    `background` is the colour in 0..1 behind RGBA images, used where it is not drawn at random; None for opaque images.
    `depths` are depths of pixels, for loss terms that ask for them; None if none does.
    """

    rig: CameraRig
    images: ImageSource
    bounds: Bounds
    background: tuple[float, float, float] | None = None
    depths: DepthSource | None = None

    @cached_property
    def sizes(self) -> Tensor:
        """[I, 2] int64: height and width of each image."""
        return torch.from_numpy(self.images.sizes)

    @cached_property
    def times(self) -> Tensor | None:
        """[I] float32 in 0..1, on the device of the rig: the time of each image; None for a static scene."""
        return self.rig.times

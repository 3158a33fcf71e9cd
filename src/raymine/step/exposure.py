"""Exposure of each training image: an affine correction of the rendered colour, fitted along with the field.

Image i has a log-gain g_i and a bias b_i per channel. Of a rendered ray with colour c over a background k and opacity
o, the part that the camera saw is c - (1 - o) k. The loss compares the photo with

    exp(g_i) (c - (1 - o) k) + o b_i + (1 - o) k

so the background behind a cut-out photo is left as it is. The means of g and b over all training images are 0: photos
do not tell a brighter scene from longer exposures. Views without a correction of their own are rendered with the
identity, which is the mean exposure.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from raymine.contracts import Group
from raymine.errors import ConfigError, require_finite


@dataclass(frozen=True)
class ExposureConfig:
    """lr: learning rate of log-gain and bias. It follows the schedule of the optimiser."""

    lr: float = 2e-3

    def __post_init__(self) -> None:
        require_finite(self)
        if not self.lr > 0:
            raise ConfigError(f"exposure.lr must be above 0, got {self.lr}.", hint="To switch it off, omit `exposure`.")


class Exposure(nn.Module):
    """The corrections of all training images, as a part of the training state."""

    def __init__(self, config: ExposureConfig, images: int, base_lr: float, device: torch.device) -> None:
        """base_lr: the learning rate of the optimiser, to which the rates of groups refer."""
        super().__init__()
        self.config, self._rate = config, config.lr / base_lr
        self.code = nn.Parameter(torch.zeros(images, 6, device=device))

    def groups(self) -> list[Group]:
        return [Group("exposure", {"code": self.code}, rate=self._rate, decay=0.0)]

    def codes(self) -> Tensor:
        """[I, 6]: log-gain and bias of each image and channel, of mean 0 over the images. Differentiable."""
        return self.code - self.code.mean(0)

    def expose(self, colour: Tensor, opacity: Tensor, background: Tensor, image: Tensor) -> Tensor:
        """The colour [R, 3] of rays as the camera of image [R] records it; see `expose`."""
        # The gradient of `embedding` is a sum in a fixed order on a CPU; that of indexing is not.
        return expose(colour, opacity, background, embedding(image, self.codes()))


def expose(colour: Tensor, opacity: Tensor, background: Tensor, code: Tensor) -> Tensor:
    """Rendered colour [R, 3], opacity [R] and background [R, 3] with corrections code [R or 1, 6] -> colour [R, 3].

    Differentiable in all of them. A code of 0 changes the colour by rounding only.
    """
    behind = (1 - opacity)[:, None] * background
    return torch.exp(code[:, :3]) * (colour - behind) + opacity[:, None] * code[:, 3:] + behind

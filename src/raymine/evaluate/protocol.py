"""How raymine compares a rendered view with its image: the only place that defines it. docs/evaluation.md explains it.

A `Protocol` is a value. It holds what every evaluation of raymine does alike, and what differs between evaluations:
split, background and number of views. Scores of two runs may be compared if their protocols have the same `digest`.

Where nerfbaselines (1.2) defines a step, raymine does the same: background, quantisation, SSIM, LPIPS and averages.
Masked pixels differ: nerfbaselines paints them black in both images and counts them; raymine leaves them out of PSNR
and SSIM. LPIPS cannot leave pixels out, so it sees them black.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from raymine.contracts import Scene, Split
from raymine.files import JSON

VERSION = 1
"""Raised whenever a change of the code changes scores."""

_AS_THEY_ARE = "as in their files"
_SMALLER_FOLDER = re.compile(r"images_\d+")

_TOLERANCE = 1e-3
"""Added before truncation, in levels. Without it, 26 / 255 in float32 could become level 25."""


@dataclass(frozen=True)
class Protocol:
    """What was compared, and how. `digest` identifies it.

    split: the images that were scored. background: colour in 0..1 behind transparent pixels, in both images. views:
    images that were scored, of `available`; fewer are evenly spread over the split. width, height: of the largest
    image, so that scores at other sizes are not mixed up. images: the folder of smaller images that was used, such as
    `images_4`, and by how much raymine made images smaller itself. The two differ by about half a dB. corrections: the
    refined poses and the exposures that training images were scored with; empty without such.
    """

    split: str = "test"
    background: tuple[float, float, float] = (0.0, 0.0, 0.0)
    views: int = 0
    available: int = 0
    width: int = 0
    height: int = 0
    images: str = _AS_THEY_ARE
    corrections: str = ""
    quantisation: str = "both images are truncated to 8 bits"
    masks: str = "masked pixels are left out of PSNR and SSIM, and are black for LPIPS"
    mean: str = "scores are computed for each image, then averaged"
    psnr: str = "-10 log10 of the mean squared error over pixels and channels, peak 1"
    ssim: str = "Gaussian window of 11 pixels, sigma 1.5, K1 0.01, K2 0.03, population covariance, no padding"
    lpips: str = "version 0.1, AlexNet or VGG16, linear heads, images scaled to -1..1"
    version: int = VERSION

    def to_json(self) -> dict[str, JSON]:
        """JSON values of all fields, the digest, and the sentence to print with scores."""
        fields = {**asdict(self), "background": list(self.background)}
        return {**fields, "digest": digest(self), "sentence": self.sentence()}

    def sentence(self) -> str:
        """One line to print with scores."""
        colour = ", ".join(f"{value:g}" for value in self.background)
        count = f"{self.views} of {self.available}" if self.views < self.available else f"all {self.views}"
        corrected = f", {self.corrections}" if self.corrections else ""
        return (
            f"Protocol {digest(self)}: {count} {self.split} images ({self.images}){corrected}, up to "
            f"{self.width}x{self.height} pixels, background ({colour}), 8 bits, mean over images."
        )


def digest(protocol: Protocol | None = None) -> str:
    """12 hexadecimal digits that identify a protocol; without one, of what all evaluations of this version share."""
    fields = asdict(protocol or Protocol())
    if fields["images"] == _AS_THEY_ARE:
        # Evaluations that are older than this field keep their digest, unless their images were made smaller.
        del fields["images"]
    if not fields["corrections"]:
        # The same for this field.
        del fields["corrections"]
    text = json.dumps(fields, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def protocol_of(scene: Scene, split: Split, views: int, corrections: str = "") -> Protocol:
    """The protocol of an evaluation of `views` images of a split. corrections: in words (`corrections.Corrections`)."""
    available = scene.of_split(split)
    cameras = [scene.cameras[scene.frames[i].camera] for i in available]
    return Protocol(
        split=split,
        background=scene.background or (0.0, 0.0, 0.0),
        views=views,
        available=len(available),
        width=max((camera.width for camera in cameras), default=0),
        height=max((camera.height for camera in cameras), default=0),
        images=_images(scene, available),
        corrections=corrections,
    )


def _images(scene: Scene, frames: Sequence[int]) -> str:
    """Which images were compared, in words: `images_4, as in their files`, or `divided by 4`."""
    folders = {scene.frames[i].image.parent.name for i in frames}
    smaller = sorted(name for name in folders if _SMALLER_FOLDER.fullmatch(name))
    size = _AS_THEY_ARE if scene.divided == 1 else f"divided by {scene.divided}"
    return ", ".join([*smaller, size])


def quantised(image: Tensor) -> Tensor:
    """Floats of any shape, clamped to 0..1 and truncated to multiples of 1/255, as nerfbaselines does; float32."""
    return torch.floor(image.float() * 255.0 + _TOLERANCE).clamp(0.0, 255.0) / 255.0

"""The recipe `unbounded`: captures without a box, such as a walk around a thing with a phone.

It is `ngp-large` (on a CPU `ngp`) with what such captures need (docs/LOG.md): the distortion loss against floaters,
twice the samples a step, and occupancy levels that reach far enough for a background with its own parallax and a sky.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from raymine.contracts import Scene
from raymine.errors import ConfigError
from raymine.losses import ColourLoss, DistortionLoss
from raymine.recipes.about import described
from raymine.recipes.ngp import ngp, ngp_large
from raymine.scenes.normalise import find_placement
from raymine.step import TrainConfig

LEVELS = 6
"""Occupancy levels of a capture whose cameras look inward: boxes up to +-32, where 1 is the distance of the subject.
Cameras that all look one way see only what is behind the subject, and more levels cost fern 1 dB (docs/LOG.md). A
transforms.json says itself how far it reaches (`aabb_scale`), and more levels cost fox 0.7 dB."""
_SAYS_ITS_REACH = "transforms"


@described(
    "`ngp-large` with distortion loss, for space without an end",
    scenes="photos with a background, walks around a thing, forward-facing captures",
    time="a minute on a GPU",
    figure="bonsai 800x533 32.5 dB after 60 s (H200); 23.6 dB at 400x266 (2 cores)",
)
def unbounded(scene: Scene, device: str) -> TrainConfig:
    """For scenes with several occupancy levels. `ConfigError` for one that fits into a box."""
    if not scene.bounds.unbounded:
        raise ConfigError(
            "The recipe `unbounded` is for captures without a box, and this scene fits into one.",
            hint="Use the recipe `ngp` or `ngp-large`.",
        )
    config = ngp(scene, device) if device == "cpu" else ngp_large(scene, device)
    batch = config.batch if device == "cpu" else replace(config.batch, samples=2 * config.batch.samples)
    inward = find_placement(np.stack([frame.pose for frame in scene.frames])).layout == "inward"
    far = inward and scene.format != _SAYS_ITS_REACH
    loss = (ColourLoss("l2"), DistortionLoss(0.01))
    return replace(config, loss=loss, batch=batch, levels=LEVELS if far else 0)

"""The recipe `unbounded`: captures without a box, such as a walk around a thing with a phone.

It is `ngp-large` (on a CPU `ngp`) with what such captures need (docs/LOG.md): the distortion loss against floaters,
twice the samples a step, and occupancy levels that reach far enough for a background with its own parallax and a sky.
On a CPU, captures that need these levels are sampled by proposal networks instead.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from raymine.contracts import Scene, Term
from raymine.errors import ConfigError
from raymine.losses import ColourLoss, DistortionLoss, FreeSpaceLoss
from raymine.recipes.about import described
from raymine.recipes.ngp import ngp, ngp_large
from raymine.recipes.proposal import proposal
from raymine.samplers import OccupancyConfig
from raymine.scenes.normalise import find_placement
from raymine.step import TrainConfig

LEVELS = 6
"""Occupancy levels of a capture whose cameras look inward: boxes up to +-32, where 1 is the distance of the subject.
Cameras that all look one way see only what is behind the subject, and more levels cost fern 1 dB (docs/LOG.md). A
transforms.json says itself how far it reaches (`aabb_scale`), and more levels cost fox 0.7 dB."""
_SAYS_ITS_REACH = "transforms"
FEW = 40
"""Training images up to which density in front of cameras is penalised, and no levels are added. With 17 photos of a
plush toy in a room, held-out views have 14.3 dB without either and 24.6 dB with both. With 85 photos of the
observatory the penalty costs 0.9 dB and the levels gain 1.6 dB (docs/LOG.md)."""
FEW_SAMPLES = 1 << 19
"""Samples of a step on CUDA with that penalty. Such steps are captured, and longer than fused ones."""

FORMING = 64
"""Steps before cells of the occupancy grid are left out. What few cameras see forms late. A part of a wall that is not
opaque when its cells count as empty is not sampled again, and rays explain it by what lies behind. Fern, whose cameras
all see the same, gains nothing and loses up to 0.4 dB on a CPU; few photos lose up to 2.9 dB to fog (docs/LOG.md)."""


@described(
    "`ngp-large` with distortion loss, for space without an end",
    scenes="photos with a background, walks around a thing, forward-facing captures",
    time="a minute on a GPU",
    figure="bonsai 800x533 32.5 dB after 60 s (H200); 28.0 dB at 400x266 after 300 s (2 cores)",
)
def unbounded(scene: Scene, device: str) -> TrainConfig:
    """For scenes with several occupancy levels. `ConfigError` for one that fits into a box."""
    if not scene.bounds.unbounded:
        raise ConfigError(
            "The recipe `unbounded` is for captures without a box, and this scene fits into one.",
            hint="Use the recipe `ngp` or `ngp-large`.",
        )
    config = ngp(scene, device) if device == "cpu" else ngp_large(scene, device)
    inward = find_placement(np.stack([frame.pose for frame in scene.frames])).layout == "inward"
    # On CUDA the penalty costs the fused step, which fern, whose cameras all look one way, has no reason to give up.
    few = len(scene.of_split("train")) <= FEW and (inward or device == "cpu")
    far = inward and scene.format != _SAYS_ITS_REACH and not few
    if far and device == "cpu":
        # Bonsai has 28.1 dB after 300 s where an occupancy grid had 26.2; the observatory has the same with either.
        sampled = proposal(scene, device)
        return replace(sampled, loss=(*sampled.loss, DistortionLoss(0.01)))
    loss: tuple[Term, ...] = (ColourLoss("l2"), DistortionLoss(0.01))
    assert isinstance(config.sampler, OccupancyConfig)
    batch = config.batch
    if device != "cpu":
        batch = replace(batch, samples=FEW_SAMPLES if few else 2 * batch.samples)
    return replace(
        config,
        loss=(*loss, FreeSpaceLoss()) if few else loss,
        sampler=replace(config.sampler, start=FORMING if inward and not few else 0),
        batch=batch,
        levels=LEVELS if far else 0,
    )

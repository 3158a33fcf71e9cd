"""Techniques that a user adds to a recipe by a flag of `train`: where they fit, they change its config.

Each is refused, in a sentence, where it makes no sense. docs/recipes/README.md says when to use which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from raymine.contracts import Scene, Term
from raymine.errors import ConfigError, option
from raymine.losses import DepthLoss, DistortionLoss, FreeSpaceLoss, MaskLoss, OpacityLoss
from raymine.step import TrainConfig
from raymine.step.schedule import FadeConfig, ProgressiveConfig

LEAST_SIDE = 16
"""Pixels of the shorter side of the smallest images that progressive training begins with."""


@dataclass(frozen=True)
class Techniques:
    """What a user adds to a recipe. Weights of loss terms are 0 for none; distortion, free_space:
    None keeps the recipe's own.

    progressive: train on small images first. coarse_to_fine: fade the levels of the field in.
    """

    progressive: bool = False
    coarse_to_fine: bool = False
    opacity_loss: float = 0.0
    mask_loss: float = 0.0
    depth_loss: float = 0.0
    distortion: float | None = None
    free_space: float | None = None

    def __post_init__(self) -> None:
        for name in ("opacity_loss", "mask_loss", "depth_loss", "distortion", "free_space"):
            weight = getattr(self, name)
            if weight is not None and not 0 <= weight < math.inf:
                raise ConfigError(f"{option(name)} must be a weight of 0 (off) or more, got {weight:g}.")


def with_techniques(config: TrainConfig, wanted: Techniques, scene: Scene) -> TrainConfig:
    """The config with the techniques. `ConfigError` says why one of them makes no sense here."""
    if wanted.coarse_to_fine:
        if config.poses is not None:
            raise ConfigError(
                f"{option('coarse_to_fine')}: {option('refine_poses')} opens the levels from coarse to fine already.",
                hint="Drop one of them.",
            )
        config = replace(config, fade=config.fade or FadeConfig())
    if wanted.progressive:
        config = replace(config, progressive=_progressive(config, scene))
    terms: list[Term] = [
        *([OpacityLoss(wanted.opacity_loss)] if wanted.opacity_loss else []),
        *([_mask(wanted.mask_loss, scene)] if wanted.mask_loss else []),
        *([_depth(wanted.depth_loss, scene)] if wanted.depth_loss else []),
    ]
    loss: tuple[Term, ...] = (*config.loss, *terms)
    if wanted.distortion is not None:
        loss = tuple(term for term in loss if not isinstance(term, DistortionLoss))
        loss = (*loss, DistortionLoss(wanted.distortion)) if wanted.distortion else loss
    if wanted.free_space is not None:
        loss = tuple(term for term in loss if not isinstance(term, FreeSpaceLoss))
        loss = (*loss, _free_space(wanted.free_space, scene)) if wanted.free_space else loss
    return replace(config, loss=loss) if loss != config.loss else config


def _progressive(config: TrainConfig, scene: Scene) -> ProgressiveConfig:
    asked = option("progressive")
    if config.pixels.follows_error:
        raise ConfigError(
            f"{asked}: pixels are drawn by error ({config.pixels.policy}), and errors of small images say nothing "
            "about the pixels of large ones.",
            hint=f"Use {option('pixels', 'edges')} or {option('pixels', 'uniform')}.",
        )
    made = config.progressive or ProgressiveConfig()
    side = min(min(camera.width, camera.height) for camera in scene.cameras)
    if side // max(made.factors) < LEAST_SIDE:
        raise ConfigError(
            f"{asked}: images of {side} pixels are too small to begin with 1/{max(made.factors)} of their size.",
            hint=f"It takes {LEAST_SIDE * max(made.factors)} pixels and more; train without it.",
        )
    return made


def _mask(weight: float, scene: Scene) -> MaskLoss:
    if scene.background is None:
        raise ConfigError(
            f"{option('mask_loss')}: the images of this scene are opaque, so there is no alpha to compare with.",
            hint="It is for images with transparent pixels. Masks of ignored pixels (`mask_path`) work without it.",
        )
    return MaskLoss(weight)


def _free_space(weight: float, scene: Scene) -> FreeSpaceLoss:
    if scene.moves or not scene.bounds.unbounded:
        why = "moves" if scene.moves else "fits into a box, and cameras stand outside of it"
        raise ConfigError(
            f"{option('free_space')}: this scene {why}.", hint="It is for photos with a background; train without it."
        )
    return FreeSpaceLoss(weight)


def _depth(weight: float, scene: Scene) -> DepthLoss:
    if not any(scene.frames[i].depth is not None for i in scene.of_split("train")):
        raise ConfigError(
            f"{option('depth_loss')}: the training frames of this scene have no depth maps.",
            hint="A transforms.json names them as `depth_file_path` of each frame (docs/recipes/README.md).",
        )
    return DepthLoss(weight)

"""Scores of views after their poses, their exposures or both were fitted to their own images, with the field frozen.

A run with refined poses has a world of its own, and one with exposures has a brightness of its own. The poses and the
exposures of test images were not trained, so that a direct comparison measures this difference rather than the field.
The protocol, for each image that is scored:

1. Its pose starts from the given one. If the run has refined its training poses, the similarity that takes the given
   training poses closest to the refined ones is applied to it (`cameras.align_poses`). The exposure is the identity.
   An image that was trained on starts at its refined pose and with its exposure instead, where the run has these.
2. Adam fits the twist (`step.poses`), the exposure (`step.exposure`) or both, and nothing else: `steps` steps, each on
   `pixels` random pixels of the image. It minimises the mean squared error. The learning rate decays exponentially
   to a hundredth. Twists stay within the limits of pose refinement.
3. The fit is kept if it lowers the error on `CHECKED` times `pixels` other random pixels of the image; else the view is
   scored as it started.
4. PSNR and SSIM of the whole image, as in every evaluation.

So these scores have seen the test images, through 6 numbers of an image (12 for both). They are always reported beside
the scores without fitting, under a name of their own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from raymine.cameras import align_poses, apply_similarity
from raymine.contracts import ImageSource, Rays, Rendered, Renderer, Scene, activations_of
from raymine.errors import ConfigError, option, require_finite
from raymine.kernels.threads import total
from raymine.pixels import draw_uniform
from raymine.rays import CameraRig
from raymine.render import SEEN, composite_output, query_points, visible_samples
from raymine.step import TrainState
from raymine.step.exposure import expose
from raymine.step.poses import PoseConfig, motions, move_poses, move_rays, scene_scale

from .corrections import NO_EXPOSURE, corrections_of, exposed_renderer, poses_of, refined_poses, with_poses
from .lpips.network import Lpips
from .views import Evaluation, ViewScore, evaluate_views

FitChoice = Literal["poses", "exposure", "both"]
CHECKED = 4
_FINAL = 0.01


@dataclass(frozen=True)
class FitConfig:
    """What is fitted, and how (see the module). lr: of twists and of exposures."""

    what: FitChoice = "poses"
    steps: int = 200
    pixels: int = 1024
    pose_lr: float = 2e-3
    exposure_lr: float = 1e-2

    def __post_init__(self) -> None:
        require_finite(self)
        if self.what not in get_args(FitChoice):
            raise ConfigError(f"{option('fit')} must be one of {', '.join(get_args(FitChoice))}, got {self.what!r}.")
        if self.steps < 1 or self.pixels < 1 or not (self.pose_lr > 0 and self.exposure_lr > 0):
            raise ConfigError(
                "a fit needs at least 1 step, 1 pixel and learning rates above 0; "
                f"got {self.steps}, {self.pixels}, {self.pose_lr} and {self.exposure_lr}."
            )

    @property
    def poses(self) -> bool:
        return self.what != "exposure"

    @property
    def exposure(self) -> bool:
        return self.what != "poses"


@dataclass(frozen=True)
class ViewFit:
    """What was fitted to one image. kept: whether it lowered the error; if not, the twist is 0.

    twist: rotation in radians, translation in shares of the scale of the scene. code: log-gains, then biases, with
    which the view is scored; those of training where the image was trained on and nothing else was kept.
    """

    twist: tuple[float, ...] = (0.0,) * 6
    code: tuple[float, ...] = NO_EXPOSURE
    kept: bool = False

    @property
    def degrees(self) -> float:
        return math.degrees(math.hypot(*self.twist[:3]))

    @property
    def distance(self) -> float:
        """Length of the translation, as a share of the scale of the scene."""
        return math.hypot(*self.twist[3:])


@dataclass(frozen=True)
class Fitted:
    """The scores of views after fitting, and the fits, in the order of the request. seconds: of all of it."""

    config: FitConfig
    views: tuple[ViewScore, ...]
    fits: tuple[ViewFit, ...]
    seconds: float

    @property
    def evaluation(self) -> Evaluation:
        return Evaluation(self.views, self.seconds)

    def to_json(self) -> dict[str, object]:
        """JSON values, beside the scores without fitting."""
        scores = self.evaluation.to_json()
        rows = zip(scores.pop("images"), self.fits, strict=True)  # type: ignore[call-overload]
        return {
            "what": self.config.what,
            "steps": self.config.steps,
            "pixels": self.config.pixels,
            **scores,
            "mean_degrees": float(np.mean([fit.degrees for fit in self.fits])),
            "mean_distance": float(np.mean([fit.distance for fit in self.fits])),
            "images": [
                {**row, "kept": fit.kept, "degrees": fit.degrees, "distance": fit.distance, "exposure": list(fit.code)}
                for row, fit in rows
            ],
        }


def fitted_scores(
    state: TrainState,
    renderer: Renderer,
    scene: Scene,
    frames: Sequence[int],
    images: ImageSource,
    config: FitConfig,
    *,
    trained: Sequence[int] = (),
    names: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    lpips: Sequence[Lpips] = (),
) -> Fitted:
    """Fit and score frames of the scene by the protocol of this module. `images` holds the frames in the same order.

    trained: the frames on which the state was trained, needed if it has refined poses or exposures. progress: called
    with (done, total) after each step of a fit, of all views: those of a model that moves take a second each on a slow
    CPU. lpips: networks whose distances are computed too.
    """
    started = time.perf_counter()
    device = state.device
    starts = torch.from_numpy(starting_poses(state, scene, frames, trained, aligned=config.poses))
    codes = corrections_of(state, scene, frames, trained).codes
    rig = CameraRig(with_poses(scene, frames, starts.numpy()), frames, device)
    background = scene.background or (0.0, 0.0, 0.0)
    scale, fits, views = scene_scale(scene.bounds), [], list[ViewScore]()
    told = 0

    def step() -> None:
        nonlocal told
        told += 1
        if progress is not None:
            progress(told, len(frames) * config.steps)

    for index in range(len(frames)):
        view = _View(state, rig, images, index, torch.tensor(background, device=device), scale, codes[index])
        fits.append(_fit(view, config, step))
        twist = torch.tensor([fits[-1].twist], dtype=torch.float64)
        final = move_poses(starts[index : index + 1], motions(twist, scale))
        one_frame = frames[index : index + 1]
        moved = CameraRig(with_poses(scene, one_frame, final.numpy()), one_frame, device)
        shown = exposed_renderer(renderer, fits[-1].code)
        one = _OneImage(images, index)
        name = None if names is None else [names[index]]
        views += evaluate_views(shown, moved, one, background=background, names=name, lpips=lpips).views
    return Fitted(config, tuple(views), tuple(fits), time.perf_counter() - started)


def starting_poses(
    state: TrainState, scene: Scene, frames: Sequence[int], trained: Sequence[int], *, aligned: bool = True
) -> np.ndarray:
    """Poses [V, 3, 4] of the frames: the refined ones of those that were trained on.

    aligned: move the others as a whole with the training poses, else they stay as they are given.
    """
    known = corrections_of(state, scene, frames, trained)
    if state.poses is None or not trained or not aligned:
        return known.poses
    found = align_poses(poses_of(scene, trained), refined_poses(state, scene, trained))
    moved = apply_similarity(found, poses_of(scene, frames))
    return np.where(known.trained[:, None, None], known.poses, moved)


@dataclass(frozen=True)
class _View:
    """An image whose pose and exposure are fitted. background [3]; scale: of the scene, in world units.

    code: the exposure from which it starts.
    """

    state: TrainState
    rig: CameraRig
    images: ImageSource
    index: int
    background: Tensor
    scale: float
    code: tuple[float, ...]

    def loss(self, twist: Tensor, code: Tensor, pixels: int, draw: int) -> Tensor:
        """Mean squared error [] on `pixels` random pixels, which are a function of the image and of `draw`."""
        sizes = torch.from_numpy(self.images.sizes[self.index : self.index + 1])
        zero, y, x = draw_uniform(sizes, pixels, self.index, draw)
        rgba, weight = self.images.gather(zero + self.index, y, x)
        device = self.rig.device
        rgba, weight, zero, y, x = (part.to(device) for part in (rgba, weight, zero, y, x))
        background = self.background.expand(pixels, 3)
        target = torch.lerp(background, rgba[:, :3], rgba[:, 3:])
        rays = self.rig.rays_for_pixels(zero + self.index, x, y)
        if twist.requires_grad or bool(twist.any()):
            rays = move_rays(rays, motions(twist, self.scale), zero)
        seen = rendered(self.state, rays, background)
        colour = expose(seen.colour, seen.opacity, background, code)
        return total((colour - target).square() * weight[:, None]) / (3 * total(weight).clamp_min(1.0))


def rendered(state: TrainState, rays: Rays, background: Tensor) -> Rendered:
    """Rays [R] over a background [R, 3], by the field that is shown. Differentiable in origins and directions."""
    field, stop, still = state.shown, state.config.mining.stop, rays.detached()
    with torch.no_grad():
        samples = state.sampler.sample(still, field).samples
    samples, query = visible_samples(field, still, samples, stop, SEEN)
    if rays.origins.requires_grad:
        query = replace(query_points(rays, samples), features=query.features)
    return composite_output(field.forward(query), samples, background, stop, activations_of(field))


def _fit(view: _View, config: FitConfig, stepped: Callable[[], None]) -> ViewFit:
    """Fit one view. stepped: called after each step."""
    device, limits = view.rig.device, view.state.config.poses or PoseConfig()
    twist, code = torch.zeros(1, 6, device=device), torch.tensor([view.code], device=device)
    chosen = [(twist, config.pose_lr)] if config.poses else []
    chosen += [(code, config.exposure_lr)] if config.exposure else []
    for value, _ in chosen:
        value.requires_grad_()
    groups = [{"params": [value], "lr": lr} for value, lr in chosen]
    adam = torch.optim.Adam(groups, betas=(0.9, 0.99))
    with torch.enable_grad():
        for step in range(config.steps):
            loss = view.loss(twist, code, config.pixels, step)
            # The field's own parameters may want gradients too, and must not get any.
            grads = torch.autograd.grad(loss, [value for value, _ in chosen])
            for group, (value, lr), grad in zip(adam.param_groups, chosen, grads, strict=True):
                value.grad, group["lr"] = grad.nan_to_num(), lr * _FINAL ** (step / config.steps)
            adam.step()
            _clip(twist, limits)
            stepped()
    with torch.no_grad():
        still = torch.zeros_like(twist), torch.tensor([view.code], device=device)
        before, after = (
            float(view.loss(*pair, CHECKED * config.pixels, config.steps)) for pair in (still, (twist, code))
        )
    if not after < before:
        return ViewFit(code=view.code)
    return ViewFit(tuple(twist[0].tolist()), tuple(code[0].tolist()), True)


@torch.no_grad()
def _clip(twist: Tensor, limits: PoseConfig) -> None:
    for part, limit in ((twist[:, :3], math.radians(limits.limit_degrees)), (twist[:, 3:], limits.limit_distance)):
        part.mul_((limit / part.norm(dim=1, keepdim=True).clamp_min(1e-30)).clamp_max(1.0))


class _OneImage:
    """One image of a source, as a source of its own."""

    def __init__(self, images: ImageSource, index: int) -> None:
        self._images, self._index = images, index

    @property
    def sizes(self) -> np.ndarray:
        return self._images.sizes[self._index : self._index + 1]

    def gather(self, image: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._images.gather(image + self._index, y, x)

    def image(self, index: int) -> np.ndarray:
        return self._images.image(self._index + index)

    def mask(self, index: int) -> np.ndarray | None:
        return self._images.mask(self._index + index)

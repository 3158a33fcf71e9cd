"""Refinement of camera poses during training, coarse to fine (after BARF, Lin et al., 2021).

Each training image i has a twist (w_i, v_i) of six numbers, 0 at the start. With the camera at c_i and the scale s of
the scene (`scene_scale`), exp(w_i, s v_i) = (R_i, t_i) moves a ray of that image (`cameras.rigid`):

    direction' = R_i direction        origin' = c_i + t_i

So a camera turns about its own centre, by angles about the axes of the world, and lengths are shares of the scale. The
gradient of the loss reaches the twists through the positions and directions at which the field is evaluated. Distances
along a ray, and where samples lie, are constants.

Nothing holds the world in place: all cameras may turn, move and scale together. Errors are measured after alignment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from raymine.cameras import exp_se3
from raymine.contracts import Bounds, Group, Rays
from raymine.errors import ConfigError, require_finite
from raymine.step.schedule import open_share


@dataclass(frozen=True)
class PoseConfig:
    """Settings of pose refinement.

    lr: learning rate, in radians and in shares of the scale of the scene (half the longest side of its inner box). It
        follows the schedule of the optimiser.
    limit_degrees, limit_distance: the largest correction of an image, in degrees and as a share of the scale.
    coarse: share of the field's levels that are open at the start, if the field has levels (`contracts.FadesLevels`).
    fade: share of the run over which the other levels are faded in; 0 opens all from the start.
    """

    lr: float = 1e-3
    limit_degrees: float = 10.0
    limit_distance: float = 0.1
    coarse: float = 0.25
    fade: float = 0.4

    def __post_init__(self) -> None:
        require_finite(self)
        if not self.lr > 0:
            raise ConfigError(
                f"poses.lr must be above 0, got {self.lr}.", hint="To keep poses as they are, omit `poses`."
            )
        if not (0 < self.limit_degrees < 180 and self.limit_distance > 0):
            raise ConfigError(
                "poses need 0 < limit_degrees < 180 and limit_distance > 0; "
                f"got {self.limit_degrees} and {self.limit_distance}."
            )
        if not (0 <= self.coarse <= 1 and 0 <= self.fade <= 1):
            raise ConfigError(f"poses need 0 <= coarse <= 1 and 0 <= fade <= 1, got {self.coarse} and {self.fade}.")

    def open_share(self, step: int, horizon: int) -> float:
        """The share of the field's levels that are open in step `step` of a run of `horizon` steps."""
        return open_share(step, horizon, self.coarse, self.fade)


def scene_scale(bounds: Bounds) -> float:
    """Half the longest side of the inner box, in world units: the unit of corrections."""
    return max(high - low for low, high in zip(bounds.low, bounds.high, strict=True)) / 2


class PoseRefinement(nn.Module):
    """The twists of all training images, as a part of the training state. Image i is image i of the camera rig."""

    def __init__(self, config: PoseConfig, images: int, bounds: Bounds, base_lr: float, device: torch.device) -> None:
        """base_lr: the learning rate of the optimiser, to which the rates of groups refer."""
        super().__init__()
        self.config, self.scale = config, scene_scale(bounds)
        self._rate = config.lr / base_lr
        self.twist = nn.Parameter(torch.zeros(images, 6, device=device))
        # Not saved: an image that is still at its limit after a resume is reported again.
        self._reached = torch.zeros(images, dtype=torch.bool, device=device)

    def groups(self) -> list[Group]:
        return [Group("poses", {"twist": self.twist}, rate=self._rate, decay=0.0)]

    def motions(self) -> Tensor:
        """[I, 3, 4]: rotation about the centre of each camera, and translation in world units. Differentiable."""
        return motions(self.twist, self.scale)

    def refine(self, rays: Rays, image: Tensor) -> Rays:
        """Rays [R] of the images [R], moved with their cameras. Differentiable in the twists."""
        return move_rays(rays, self.motions(), image)

    @torch.no_grad()
    def clip(self) -> None:
        """Bring every correction back to its limit. Does not wait for the device."""
        for part, limit in (
            (self.twist[:, :3], math.radians(self.config.limit_degrees)),
            (self.twist[:, 3:], self.config.limit_distance),
        ):
            size = part.norm(dim=1)
            self._reached |= size > limit
            part.mul_((limit / size.clamp_min(1e-30)).clamp_max(1.0)[:, None])

    @torch.no_grad()
    def sizes(self) -> tuple[Tensor, Tensor]:
        """The size of each correction: [I] degrees, [I] shares of the scale of the scene."""
        return self.twist[:, :3].norm(dim=1).rad2deg(), self.twist[:, 3:].norm(dim=1)

    def numbers(self) -> dict[str, Tensor]:
        """Mean sizes [] of the corrections, for the report of a step."""
        degrees, distance = self.sizes()
        return {"pose_degrees": degrees.mean(), "pose_distance": distance.mean()}

    def at_limit(self) -> list[int]:
        """The images whose correction has reached a limit since this state was created. Waits for the device."""
        return self._reached.nonzero()[:, 0].tolist()

    @torch.no_grad()
    def moved(self, poses: Tensor) -> Tensor:
        """Poses [I, 3, 4] of the training images with their corrections, in the type of `poses`. No graph."""
        return move_poses(poses, motions(self.twist.to(poses.dtype), self.scale))


def motions(twist: Tensor, scale: float) -> Tensor:
    """Twists [n, 6], in radians and shares of `scale` -> rigid motions [n, 3, 4] in world units. Differentiable."""
    return exp_se3(torch.cat((twist[:, :3], twist[:, 3:] * scale), 1))


def move_rays(rays: Rays, motion: Tensor, index: Tensor) -> Rays:
    """Rays [R], each turned about its origin and moved by motion [n, 3, 4] number index [R]. Differentiable."""
    # The gradient of `embedding` is a sum in a fixed order on a CPU; that of indexing is not.
    own = embedding(index, motion.reshape(-1, 12)).reshape(-1, 3, 4)
    directions = (own[:, :, :3] * rays.directions[:, None, :]).sum(2)
    return replace(rays, origins=rays.origins + own[:, :, 3], directions=directions)


def move_poses(poses: Tensor, motion: Tensor) -> Tensor:
    """Poses [n, 3, 4], each turned about its centre and moved by motion [n, 3, 4]: those of `move_rays`."""
    return torch.cat((motion[:, :, :3] @ poses[:, :, :3], poses[:, :, 3:] + motion[:, :, 3:]), 2)

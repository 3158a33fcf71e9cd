"""Refinement of camera poses during training, coarse to fine (after BARF, Lin et al., 2021).

Each training image i has a twist (w_i, v_i) of six numbers, 0 at the start. With the camera at c_i and the scale s of
the scene (`scene_scale`), exp(w_i, s v_i) = (R_i, t_i) moves a ray of that image (`cameras.rigid`):

    direction' = R_i direction        origin' = c_i + t_i

So a camera turns about its own centre, by angles about the axes of the world, and lengths are shares of the scale. The
gradient of the loss reaches the twists through the positions and directions at which the field is evaluated. Distances
along a ray, and where samples lie, are constants.

Nothing holds the world in place: all cameras may turn, move and scale together. Errors are measured after alignment.

At the share `PoseConfig.until` of the run refinement ends, and does not begin again. From then on the cameras of a rig
are where the twists have brought them (`PoseRefinement.placed`), and rays have no graph: any engine can draw them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from raymine.cameras import exp_se3
from raymine.contracts import Bounds, Group, Rays, Scalars
from raymine.errors import ConfigError, require_finite
from raymine.rays import CameraRig
from raymine.step.schedule import end_of, open_share


@dataclass(frozen=True)
class PoseConfig:
    """Settings of pose refinement.

    lr: learning rate at the start, in radians and in shares of the scale of the scene (half the longest side of its
        inner box).
    final: factor to which the learning rate falls in the second half of refinement, times what the schedule of the
        optimiser leaves of it.
    limit_degrees, limit_distance: the largest correction of an image, in degrees and as a share of the scale.
    coarse: share of the field's levels that are open at the start, if the field has levels (`contracts.FadesLevels`).
    fade: share of the run over which the other levels are faded in; 0 opens all from the start.
    until: share of the run after which poses stay as they are, or `fade` where that is later: a correction that was
        found with a part of the levels alone is a coarse one. 1 refines them to the end.
    """

    lr: float = 1e-3
    final: float = 0.03
    limit_degrees: float = 10.0
    limit_distance: float = 0.1
    coarse: float = 0.25
    fade: float = 0.4
    until: float = 0.6

    def __post_init__(self) -> None:
        require_finite(self)
        if not self.lr > 0:
            raise ConfigError(
                f"poses.lr must be above 0, got {self.lr}.", hint="To keep poses as they are, omit `poses`."
            )
        if not 0 < self.final <= 1:
            raise ConfigError(f"poses.final must be above 0 and at most 1, got {self.final}.", hint="1 keeps the rate.")
        if not (0 < self.limit_degrees < 180 and self.limit_distance > 0):
            raise ConfigError(
                "poses need 0 < limit_degrees < 180 and limit_distance > 0; "
                f"got {self.limit_degrees} and {self.limit_distance}."
            )
        if not (0 <= self.coarse <= 1 and 0 <= self.fade <= 1):
            raise ConfigError(f"poses need 0 <= coarse <= 1 and 0 <= fade <= 1, got {self.coarse} and {self.fade}.")
        if not 0 < self.until <= 1:
            raise ConfigError(
                f"poses.until must be above 0 and at most 1, got {self.until}.", hint="1 refines poses to the end."
            )

    @property
    def end(self) -> float:
        """The share of the run after which poses stay as they are."""
        return max(self.until, self.fade)

    def ends(self, step: int, horizon: int) -> bool:
        """Whether refinement has ended before step `step` of a run of `horizon` steps."""
        return self.end < 1 and step >= end_of(self.end, horizon)

    def rate_at(self, step: int, horizon: int) -> float:
        """Factor on the learning rate in step `step` of a run of `horizon` steps.

        1 in the first half of refinement; in the second it falls exponentially to `final`.
        """
        done = step / max(1.0, self.end * horizon)
        return self.final ** min(1.0, max(0.0, 2 * done - 1))

    def open_share(self, step: int, horizon: int) -> float:
        """The share of the field's levels that are open in step `step` of a run of `horizon` steps."""
        return open_share(step, horizon, self.coarse, self.fade)


def scene_scale(bounds: Bounds) -> float:
    """Half the longest side of the inner box, in world units: the unit of corrections."""
    return max(high - low for low, high in zip(bounds.low, bounds.high, strict=True)) / 2


class PoseRefinement(nn.Module):
    """The twists of all training images, as a part of the training state. Image i is image i of the camera rig.

    ended: the step before which refinement ended; 0 while it goes on. From then on the twists are constants.
    """

    def __init__(self, config: PoseConfig, images: int, bounds: Bounds, base_lr: float, device: torch.device) -> None:
        """base_lr: the learning rate of the optimiser, to which the rates of groups refer."""
        super().__init__()
        self.config, self.scale = config, scene_scale(bounds)
        self._rate = config.lr / base_lr
        self.ended = 0
        self.twist = nn.Parameter(torch.zeros(images, 6, device=device))
        # Not saved: an image that is still at its limit after a resume is reported again.
        self._reached = torch.zeros(images, dtype=torch.bool, device=device)
        self._placed: tuple[CameraRig, CameraRig] | None = None

    @property
    def refining(self) -> bool:
        """Whether the twists are trained."""
        return self.ended == 0

    def end(self, step: int) -> None:
        """Refinement ends before step `step`."""
        self.ended, self._placed = max(1, step), None

    def end_if_due(self, step: int, horizon: int) -> None:
        """End refinement if step `step` of a run of `horizon` steps is beyond it. It does not begin again."""
        if self.refining and self.config.ends(step, horizon):
            self.end(step)

    def open_share(self, step: int, horizon: int) -> float:
        """As `PoseConfig.open_share`; 1 when refinement has ended, also if the horizon has grown since."""
        return self.config.open_share(step, horizon) if self.refining else 1.0

    def scalars(self) -> Scalars:
        return {"ended": self.ended}

    def restored(self, scalars: Scalars) -> None:
        self.ended, self._placed = int(scalars["ended"]), None

    def kept_in(self, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A saved state of the run, with the poses of now instead of those that it has, if they are refined no more."""
        if self.refining:
            return tensors, scalars
        return {**tensors, "poses.twist": self.twist.detach().clone()}, {**scalars, "poses.ended": self.ended}

    def groups(self) -> list[Group]:
        return [Group("poses", {"twist": self.twist}, rate=self._rate, decay=0.0)]

    def motions(self) -> Tensor:
        """[I, 3, 4]: rotation about the centre of each camera, and translation in world units.

        Differentiable while poses are refined.
        """
        return motions(self.twist if self.refining else self.twist.detach(), self.scale)

    def refine(self, rays: Rays, image: Tensor) -> Rays:
        """Rays [R] of the images [R] of the given rig, moved with their cameras. Differentiable as `motions` is."""
        return move_rays(rays, self.motions(), image)

    def placed(self, rig: CameraRig) -> CameraRig:
        """The cameras that rays are drawn with: while poses are refined the given ones, whose rays `refine` moves.

        Afterwards the moved ones: the same rig at each call, until the state is restored.
        """
        if self.refining:
            return rig
        if self._placed is None or self._placed[0] is not rig:
            self._placed = rig, rig.at_poses(self.moved(rig.poses.double()))
        return self._placed[1]

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

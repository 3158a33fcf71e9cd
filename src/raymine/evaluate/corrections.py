"""What training has found out about images that are scored: the refined poses and the exposures of those it saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from raymine.contracts import Rays, Rendered, Renderer, Scene
from raymine.step import TrainState
from raymine.step.exposure import expose

NO_EXPOSURE = (0.0,) * 6


@dataclass(frozen=True, eq=False)
class Corrections:
    """Of the images at `frames`, in this order. An image that was not trained on keeps its pose and has no exposure.

    poses [V, 3, 4] float64. codes: log-gains, then biases of each image. trained [V] bool: whether it was trained on.
    refined, exposed: whether the run fits poses, and exposures.
    """

    frames: tuple[int, ...]
    poses: np.ndarray
    codes: tuple[tuple[float, ...], ...]
    trained: np.ndarray
    refined: bool = False
    exposed: bool = False

    def scene(self, scene: Scene) -> Scene:
        """The scene with these poses."""
        return with_poses(scene, self.frames, self.poses)

    def renderers(self, renderer: Renderer) -> list[Renderer]:
        """A renderer for each image, with its exposure."""
        return [exposed_renderer(renderer, code) for code in self.codes]

    def words(self) -> str:
        """What was corrected, for the sentence about an evaluation; empty if nothing was."""
        known, count = int(self.trained.sum()), len(self.trained)
        found = ["at the poses that training refined"] if self.refined and known else []
        found += ["with the exposures that training fitted"] if self.exposed and known else []
        return ("" if known == count or not found else f"{known} of them ") + " and ".join(found)


def corrections_of(state: TrainState, scene: Scene, frames: Sequence[int], trained: Sequence[int]) -> Corrections:
    """The corrections of frames of the scene. trained: the frames on which the state was trained, in its order."""
    numbers = {frame: number for number, frame in enumerate(trained)}
    own = [numbers.get(frame, -1) for frame in frames]
    poses, codes = poses_of(scene, frames), [NO_EXPOSURE] * len(own)
    if state.poses is not None and trained:
        refined = refined_poses(state, scene, trained)
        poses = np.stack([refined[number] if number >= 0 else pose for number, pose in zip(own, poses, strict=True)])
    if state.exposure is not None and trained:
        rows = state.exposure.codes().detach().cpu().tolist()
        codes = [tuple(rows[number]) if number >= 0 else NO_EXPOSURE for number in own]
    seen = np.array(own, int) >= 0
    return Corrections(tuple(frames), poses, tuple(codes), seen, state.poses is not None, state.exposure is not None)


def refined_poses(state: TrainState, scene: Scene, trained: Sequence[int]) -> np.ndarray:
    """The refined poses [I, 3, 4] of the frames on which the state was trained; the given ones if none are refined."""
    given = poses_of(scene, trained)
    if state.poses is None:
        return given
    return state.poses.moved(torch.from_numpy(given).to(state.device)).cpu().numpy()


def poses_of(scene: Scene, frames: Sequence[int]) -> np.ndarray:
    """The given poses [V, 3, 4] of frames."""
    return np.stack([scene.frames[i].pose for i in frames]) if frames else np.zeros((0, 3, 4))


def with_poses(scene: Scene, frames: Sequence[int], poses: np.ndarray) -> Scene:
    """The scene with poses [V, 3, 4] of frames."""
    changed = list(scene.frames)
    for frame, pose in zip(frames, poses, strict=True):
        changed[frame] = replace(changed[frame], pose=pose)
    return replace(scene, frames=tuple(changed))


@dataclass(frozen=True)
class ExposedRenderer:
    """A renderer whose colours have the exposure `code`: log-gains, then biases (`step.exposure.expose`)."""

    renderer: Renderer
    code: tuple[float, ...]

    def render(self, rays: Rays, background: Tensor) -> Rendered:
        """See `contracts.Renderer`."""
        seen = self.renderer.render(rays, background)
        code = torch.tensor([self.code], device=seen.colour.device)
        behind = background.to(seen.colour.device).expand(len(rays), 3)
        return replace(seen, colour=expose(seen.colour, seen.opacity, behind, code))


def exposed_renderer(renderer: Renderer, code: tuple[float, ...]) -> Renderer:
    """The renderer with an exposure, or as it is if the code is 0."""
    return ExposedRenderer(renderer, code) if any(code) else renderer

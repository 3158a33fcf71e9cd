"""Training data whose cameras are a little off, for tests of pose refinement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from raymine.cameras import exp_se3
from raymine.contracts import Scene
from raymine.rays import CameraRig
from raymine.step import TrainData
from raymine.step.poses import move_poses


def perturbed(scene: Scene, frames: Sequence[int], degrees: float, distance: float, seed: int = 0) -> Scene:
    """The scene with these frames turned about their centres and moved, in random directions, by fixed amounts."""
    rng = np.random.default_rng(seed)
    changed = list(scene.frames)
    for i in frames:
        axis, way = (vector / np.linalg.norm(vector) for vector in rng.normal(size=(2, 3)))
        motion = exp_se3(torch.from_numpy(np.concatenate((np.radians(degrees) * axis, np.zeros(3)))[None]))
        motion[0, :, 3] = torch.from_numpy(distance * way)
        moved = move_poses(torch.from_numpy(changed[i].pose[None]), motion)[0].numpy()
        changed[i] = replace(changed[i], pose=moved)
    return replace(scene, frames=tuple(changed))


def poses_of(scene: Scene, frames: Sequence[int]) -> np.ndarray:
    """Poses [I, 3, 4] of these frames."""
    return np.stack([scene.frames[i].pose for i in frames])


def with_cameras_of(data: TrainData, scene: Scene) -> TrainData:
    """The same images with the cameras of another scene."""
    return replace(data, rig=CameraRig(scene, data.rig.frames))
